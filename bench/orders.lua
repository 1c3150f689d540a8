-- Script for wrk with one thread: sends requests that each have their own key, and prints one RESULT line.
-- Arguments: METHOD PATH HEADER NONCE SKUS EXPONENT. HEADER has the key; /healthz and requests without
-- an Idempotency-Key send it in another header, so that all cost wrk the same. With more than one SKU,
-- each `{}` in PATH becomes its number: in turn, or for an EXPONENT above 0 under a Zipf law.

local zipf = dofile(debug.getinfo(1, "S").source:match("^@(.*/)") .. "zipf.lua")

function init(arguments)
  local method, path, header, nonce = arguments[1], arguments[2], arguments[3], arguments[4]
  local count, exponent = tonumber(arguments[5]), tonumber(arguments[6])
  before, order, sent = {}, {}, 0
  for number = 1, count do
    order[number] = number
    before[number] = method .. " " .. path:gsub("{}", number) .. " HTTP/1.1\r\nHost: " .. wrk.host
      .. "\r\n" .. (method == "POST" and "Content-Length: 0\r\n" or "")
      .. header .. ": " .. nonce .. "-"
  end
  if exponent > 0 then order = zipf(count, exponent) end
  length = #order
end

-- wrk.format would take longer than sending the request.
function request()
  sent = sent + 1
  return before[order[sent % length + 1]] .. sent .. "\r\n\r\n"
end

-- There is no function `response`: for it, wrk would build a table of each answer.
function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    'RESULT {"seconds": %.6f, "requests": %d, "refused": %d, "broken": %d, '
      .. '"p50_ms": %.3f, "p99_ms": %.3f}\n',
    summary.duration / 1e6, summary.requests, errors.status,
    errors.connect + errors.read + errors.write + errors.timeout,
    latency:percentile(50) / 1e3, latency:percentile(99) / 1e3))
end
