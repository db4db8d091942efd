"""What the dashboard shows, as the JSON documents that CloudWatch takes. Pure.

Every line names its metric in full: a SEARCH would also find the arms and classes of yesterday's file.
"""

from infra.dashboard.pages import Page, dashboard_pages

__all__ = ["Page", "dashboard_pages"]
