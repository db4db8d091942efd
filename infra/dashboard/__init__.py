"""What the dashboard shows, as the JSON documents that CloudWatch takes. Pure.

Every line names its metric in full: a SEARCH would also find the arms and classes of yesterday's file. The load
balancer of a promoted arm alone is searched for, since its name is known only once it stands.
"""

from infra.dashboard.pages import Page, dashboard_pages
from infra.dashboard.service import service_page

__all__ = ["Page", "dashboard_pages", "service_page"]
