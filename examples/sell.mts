// Sells units, and repeats what a shop must repeat: 500, 502, 503, 504, a request in flight, and
// broken connections, with the same Idempotency-Key. So an order is sold once, although an answer was lost.
//
//     STOCKLOCK_KEY=slk_… node sell.mts http://localhost:8080 tea 2 order-7
//
// Node 22.18 and later run this file as it is; before, `tsc --strict --target es2022 --lib es2022,dom sell.mts`.

declare const process: { argv: string[]; env: Record<string, string | undefined>; exitCode: number };

/** How long an order is tried, in ms. A longer one is better than to give up with an unknown outcome. */
const LIMIT_MS = 60_000;
/** How long one request may take, in ms: longer than the service's REQUEST_DEADLINE_MS. */
const REQUEST_MS = 10_000;

interface Answer {
  status: number;
  body: { code?: string; [field: string]: unknown };
}

/** Sells `quantity` units under `key`. Every answer but 200 means that nothing was or will be sold. */
export async function sell(url: string, sku: string, quantity: number, key: string): Promise<Answer> {
  const end = Date.now() + LIMIT_MS;
  // Until then, an earlier request that had no answer may still be made.
  let final = 0;
  for (let attempt = 0; ; attempt++) {
    // With full jitter, so that clients do not return together.
    let pause = Math.random() * Math.min(100 * 2 ** attempt, 5_000);
    let problem: unknown;
    const abort = new AbortController();
    const timer = setTimeout(() => abort.abort(), REQUEST_MS);
    try {
      const response = await fetch(`${url}/stock/deduct`, {
        method: "POST",
        headers: {
          "Authorization": `Bearer ${process.env["STOCKLOCK_KEY"]}`,
          "Content-Type": "application/json",
          "Idempotency-Key": key,
        },
        body: JSON.stringify({ sku, quantity, reference: key }),
        signal: abort.signal,
      });
      const text = await response.text();
      const isJson = /[/+]json/.test(response.headers.get("Content-Type") ?? "");
      const body: Answer["body"] = isJson ? JSON.parse(text) : {};
      const repeats = [429, 500, 502, 503, 504].includes(response.status) || body.code === "request-in-flight";
      problem = `${response.status} ${body.code ?? ""}`;
      if (repeats) {
        pause += 1000 * Number(response.headers.get("Retry-After") ?? 0);
        if ([500, 502, 504].includes(response.status)) final = Date.now() + REQUEST_MS;
      } else if (response.status === 200 || Date.now() >= final) {
        return { status: response.status, body };
      } else {
        pause = final - Date.now();
      }
    } catch (error) {
      // No complete answer: the units may be sold.
      problem = error;
      final = Date.now() + REQUEST_MS;
    } finally {
      clearTimeout(timer);
    }
    if (Date.now() + pause > end) throw new Error(`order ${key}: unknown outcome: ${problem}`);
    await new Promise((resume) => setTimeout(resume, pause));
  }
}

const [url, sku, quantity, key] = process.argv.slice(2);
if (url && sku && quantity && key) {
  const answer = await sell(url, sku, Number(quantity), key);
  console.log(JSON.stringify(answer.body));
  process.exitCode = answer.status === 200 ? 0 : 1;
}
