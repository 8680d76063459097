"""Published runs on devices of other makers, beside the predictions of profiles that were fitted to none of them."""
