"""Follow every internal link of the built documentation: pages, files and anchors.

``python .ci/check_links.py doc/_build/html``; ends with an error that lists what leads nowhere.
"""

import re
import sys
from pathlib import Path
from urllib.parse import unquote, urldefrag

ELSEWHERE = re.compile(r"[a-z]+:|//|\{\{")
ANCHOR = re.compile(r'\b(?:id|name)="([^"]+)"')
# From source code back to its page: Sphinx takes one module for all objects of a file.
BACK = re.compile(r'<a class="viewcode-back"[^>]*>')


def main(site):
    """Check a site and return the number of its links."""
    pages = {
        path.resolve(): BACK.sub("", path.read_text(encoding="utf-8"))
        for path in site.rglob("*.html")
    }
    anchors = {path: set(ANCHOR.findall(text)) for path, text in pages.items()}
    broken, n_links = [], 0
    for page, text in pages.items():
        for link in re.findall(r'\b(?:href|src)="([^"]+)"', text):
            if ELSEWHERE.match(link):
                continue
            n_links += 1
            address, anchor = urldefrag(link)
            target = page.parent / unquote(address.partition("?")[0]) if address else page
            target = target.resolve()
            lost = anchor and target in anchors and unquote(anchor) not in anchors[target]
            if lost or not target.exists():
                broken.append(f"{page.relative_to(site.resolve())}: {link}")
    print(f"{len(pages)} pages, {n_links} internal links, {len(broken)} of them broken")
    if broken or not n_links:
        sys.exit("\n".join(sorted(set(broken))) or f"{site} has no links.")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
