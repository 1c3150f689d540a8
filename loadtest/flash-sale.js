// A flash sale for k6: buyers come in a ramp, all after one SKU, until it is sold out and beyond.
//
// Each order is one POST with an Idempotency-Key of its own, repeated with the same key while the
// outcome is not known. In the end the audit is read: the run fails (exit code 99 or 107) if more
// was sold than there was, if the counter and the ledger disagree, or if the ledger has another
// number of sales than the buyers were told, or if the SKU was not sold out. An answer that nobody can act on ends it (108).
//
//   BASE_URL    nginx, or one replica      [http://127.0.0.1:18080]
//   BUYERS      at the height of it        [50]
//   DURATION    of the height, seconds     [10]
//   STOCK       units on sale              [5000]
//   STOCK_HOME  of the SKU, sql or redis   [sql]

import http from 'k6/http';
import exec from 'k6/execution';
import { check, fail, sleep } from 'k6';
import { Counter } from 'k6/metrics';

const BASE = __ENV.BASE_URL || 'http://127.0.0.1:18080';
const BUYERS = Number(__ENV.BUYERS || 50);
const DURATION = Number(__ENV.DURATION || 10);
const STOCK = Number(__ENV.STOCK || 5000);
const STOCK_HOME = __ENV.STOCK_HOME || 'sql';
const MOST_ATTEMPTS = 50;

const sold = new Counter('orders_sold');
const refused = new Counter('orders_refused');
const repeated = new Counter('orders_repeated');
const unanswered = new Counter('orders_unanswered');
// One up for each sale that a buyer was told of, and down by those in the ledger.
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
      // Nobody is cut off before the answer: the audit would know of more sales than the buyers.
      gracefulRampDown: '30s',
      gracefulStop: '30s',
    },
  },
  thresholds: {
    orders_sold: ['count>0'],
    // Sold out, or nothing could have been oversold: a slower service needs less STOCK.
    orders_refused: ['count>0'],
    orders_unanswered: ['count==0'],
    sales_unaccounted: ['count==0'],
    // 409 is an answer: sold out.
    'http_req_failed{scenario:sale}': ['rate<0.01'],
    'http_req_duration{scenario:sale}': ['p(99)<2000'],
    checks: ['rate==1'],
  },
  summaryTrendStats: ['med', 'p(90)', 'p(99)', 'max'],
};

http.setResponseCallback(http.expectedStatuses({ min: 200, max: 299 }, 409));

export function setup() {
  const sku = `flash-${Date.now()}`;
  const body = JSON.stringify({ on_hand: STOCK, home: STOCK_HOME, reason: 'flash sale' });
  const headers = { 'Content-Type': 'application/json' };
  const answer = http.put(`${BASE}/stock/${sku}`, body, { headers, tags: { name: 'set the level' } });
  if (answer.status !== 201) fail(`the SKU cannot be set up: ${answer.status} ${answer.body}`);
  return { sku };
}

export default function order({ sku }) {
  const body = JSON.stringify({ sku });
  const headers = {
    'Content-Type': 'application/json',
    'Idempotency-Key': `${sku}-${exec.vu.idInTest}-${exec.vu.iterationInScenario}`,
  };
  for (let attempt = 1; attempt <= MOST_ATTEMPTS; attempt++) {
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
    // 0: the connection was cut. All of these leave the order open, or refuse it for now.
    const open = [0, 429, 502, 503, 504].includes(answer.status) || code === 'request-in-flight';
    if (!open) exec.test.abort(`cannot go on after ${answer.status} ${answer.body}`);
    repeated.add(1);
    sleep(0.05 + Math.random() * 0.2);
  }
  unanswered.add(1);
}

// What was sold in Redis is in SQL a moment later.
function settledAudit(sku) {
  for (let attempt = 1; ; attempt++) {
    const answer = http.get(`${BASE}/stock/${sku}/audit`, { tags: { name: 'audit' } });
    if (answer.status !== 200) fail(`no audit: ${answer.status} ${answer.body}`);
    const [audit] = answer.json('warehouses');
    if (audit.pending === 0 || attempt >= 100) return audit;
    sleep(0.1);
  }
}

export function teardown({ sku }) {
  const audit = settledAudit(sku);
  console.log(`audit of ${sku}: ${JSON.stringify(audit)}`);
  unaccounted.add(-audit.sold);
  const exact = check(audit, {
    'nothing was oversold': (a) => a.oversold === 0,
    'counter and ledger agree': (a) => a.drift === 0 && a.consistent,
    'what came in was sold or is there': (a) => a.received === STOCK && a.sold + a.on_hand === STOCK,
  });
  if (!exact) fail(`${sku} was not sold exactly: oversold ${audit.oversold}, drift ${audit.drift}`);
}
