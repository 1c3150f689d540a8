"""Sells units, and repeats what a shop must repeat: 500, 502, 503, 504, a request in flight, and
broken connections, with the same Idempotency-Key. So an order is sold once, although an answer was lost.

    STOCKLOCK_KEY=slk_… python3 sell.py http://localhost:8080 tea 2 order-7

Needs Python 3.9 and nothing else.
"""

import http.client
import json
import os
import random
import sys
import time
import urllib.error
import urllib.request

# How long an order is tried, in seconds. A longer one is better than to give up with an unknown outcome.
LIMIT = 60
# How long one request may take, in seconds: longer than the service's REQUEST_DEADLINE_MS.
REQUEST_LIMIT = 10


def sell(url, sku, quantity, key):
    """Sells units under `key`. Returns status and body; every status but 200 means that nothing was or will be sold."""
    body = json.dumps({"sku": sku, "quantity": quantity, "reference": key}).encode()
    headers = {
        "Authorization": "Bearer " + os.environ.get("STOCKLOCK_KEY", ""),
        "Content-Type": "application/json",
        "Idempotency-Key": key,
    }
    end = time.monotonic() + LIMIT
    attempt = 0
    # Until then, an earlier request that had no answer may still be made.
    final = 0.0
    while True:
        # With full jitter, so that clients do not return together.
        pause = random.uniform(0, min(0.1 * 2**attempt, 5))
        attempt += 1
        try:
            request = urllib.request.Request(f"{url}/stock/deduct", body, headers, method="POST")
            try:
                response = urllib.request.urlopen(request, timeout=REQUEST_LIMIT)
            except urllib.error.HTTPError as error:
                response = error
            with response:
                text = response.read()
            is_json = response.headers.get_content_type().endswith("json")
            answer = json.loads(text) if is_json else {}
            code = answer.get("code")
            problem = f"{response.status} {code}"
            now = time.monotonic()
            if response.status in (429, 500, 502, 503, 504) or code == "request-in-flight":
                pause += float(response.headers.get("Retry-After", 0))
                if response.status in (500, 502, 504):
                    final = now + REQUEST_LIMIT
            elif response.status == 200 or now >= final:
                return response.status, answer
            else:
                pause = final - now
        except (OSError, http.client.HTTPException) as error:
            # No complete answer: the units may be sold.
            problem = error
            final = time.monotonic() + REQUEST_LIMIT
        if time.monotonic() + pause > end:
            raise TimeoutError(f"order {key}: unknown outcome: {problem}")
        time.sleep(pause)


if __name__ == "__main__":
    url, sku, quantity, key = sys.argv[1:]
    status, answer = sell(url, sku, int(quantity), key)
    print(json.dumps(answer))
    sys.exit(status != 200)
