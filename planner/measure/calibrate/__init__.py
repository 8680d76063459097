"""Constants of device and software profiles, fitted to measured runs, and the accuracy of such a fit."""
