"""Tests of the emulated endpoint: pure parts without sleeping, the HTTP parts over loopback."""
