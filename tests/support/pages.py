"""What stands in a page of HTML."""

import json
import re


def embedded(page: str) -> dict:
    """The data that stand in a page."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*)</script>', page)[1])
