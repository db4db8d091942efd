"""Rendered manifests against checkov's Kubernetes checks: every finding is fixed or exempted with a reason.

Runs in an environment of its own (`scripts/policy`), hence imports nothing but the standard library.
"""
