"""Constants of device and software profiles fitted to measured runs, and what such a fit is worth."""
