// A flash sale for k6: a growing number of buyers orders one SKU until it is sold out, and beyond.
//
// Each order is one POST with its own Idempotency-Key. A buyer repeats it with the same key until
// the service sells or refuses it. At the end the script reads the audit.
//
// It fails with exit code 99 or 107
// - if the service oversold,
// - if the level and the ledger disagree,
// - if the number of sales in the ledger differs from the number of answers with status 200, or
// - if the SKU is not sold out.
//
// It stops with exit code 108 after an answer that neither decides the order nor allows a retry.
//
//   BASE_URL  nginx, or one replica   [http://127.0.0.1:18080]
//   BUYERS    at the peak             [50]
//   DURATION  of the peak in seconds  [10]
//   STOCK     units on sale           [5000]

import http from 'k6/http';
import exec from 'k6/execution';
import { check, fail, sleep } from 'k6';
import { Counter } from 'k6/metrics';

const BASE = __ENV.BASE_URL || 'http://127.0.0.1:18080';
const BUYERS = Number(__ENV.BUYERS || 50);
const DURATION = Number(__ENV.DURATION || 10);
const STOCK = Number(__ENV.STOCK || 5000);
const MAX_ATTEMPTS = 50;

const sold = new Counter('orders_sold');
const refused = new Counter('orders_refused');
const repeated = new Counter('orders_repeated');
const unanswered = new Counter('orders_unanswered');
// Sales that were answered with 200, minus the sales in the ledger.
const unaccounted = new Counter('sales_unaccounted');

export const options = {
  scenarios: {
    sale: {
      executor: 'ramping-vus',
      startVUs: 1,
      stages: [
        { duration: '3s', target: BUYERS },
        { duration: `${DURATION}s`, target: BUYERS },
        { duration: '2s', target: 0 },
      ],
      // Each buyer waits for the answer; otherwise the ledger could have sales that no buyer counted.
      gracefulRampDown: '30s',
      gracefulStop: '30s',
    },
  },
  thresholds: {
    orders_sold: ['count>0'],
    // Without a refusal the SKU was not sold out, so the run proves nothing. Then lower STOCK.
    orders_refused: ['count>0'],
    orders_unanswered: ['count==0'],
    sales_unaccounted: ['count==0'],
    // 409 (sold out) is not a failure.
    'http_req_failed{scenario:sale}': ['rate<0.01'],
    'http_req_duration{scenario:sale}': ['p(99)<2000'],
    checks: ['rate==1'],
  },
  summaryTrendStats: ['med', 'p(90)', 'p(99)', 'max'],
};

http.setResponseCallback(http.expectedStatuses({ min: 200, max: 299 }, 409));

export function setup() {
  const sku = `flash-${Date.now()}`;
  const body = JSON.stringify({ on_hand: STOCK, reason: 'flash sale' });
  const headers = { 'Content-Type': 'application/json' };
  const answer = http.put(`${BASE}/stock/${sku}`, body, { headers, tags: { name: 'set the level' } });
  if (answer.status !== 201) fail(`the SKU cannot be created: ${answer.status} ${answer.body}`);
  return { sku };
}

export default function order({ sku }) {
  const body = JSON.stringify({ sku });
  const headers = {
    'Content-Type': 'application/json',
    'Idempotency-Key': `${sku}-${exec.vu.idInTest}-${exec.vu.iterationInScenario}`,
  };
  for (let attempt = 1; attempt <= MAX_ATTEMPTS; attempt++) {
    const answer = http.post(`${BASE}/stock/deduct`, body, { headers, tags: { name: 'deduct' } });
    if (answer.status === 200) {
      sold.add(1);
      unaccounted.add(1);
      return;
    }
    const code = answer.status === 409 && answer.json('code');
    if (code === 'insufficient-stock') {
      refused.add(1);
      return;
    }
    // After each of these answers the order is still open. Status 0: the connection broke.
    const isOpen = [0, 429, 502, 503, 504].includes(answer.status) || code === 'request-in-flight';
    if (!isOpen) exec.test.abort(`cannot continue after ${answer.status} ${answer.body}`);
    repeated.add(1);
    sleep(0.05 + Math.random() * 0.2);
  }
  unanswered.add(1);
}

export function teardown({ sku }) {
  const answer = http.get(`${BASE}/stock/${sku}/audit`, { tags: { name: 'audit' } });
  if (answer.status !== 200) fail(`the audit failed: ${answer.status} ${answer.body}`);
  const [audit] = answer.json('warehouses');
  console.log(`audit of ${sku}: ${JSON.stringify(audit)}`);
  unaccounted.add(-audit.sold);
  const exact = check(audit, {
    'nothing was oversold': (a) => a.oversold === 0,
    'level and ledger agree': (a) => a.drift === 0 && a.consistent,
    'received units are sold or on hand': (a) => a.received === STOCK && a.sold + a.on_hand === STOCK,
  });
  if (!exact) fail(`${sku} was not sold exactly: oversold ${audit.oversold}, drift ${audit.drift}`);
}
