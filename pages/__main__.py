"""``python -m pages``: builds the site."""

from pages.build import main

main()
