-- Script for wrk with one thread: sends deductions of many lines, and prints one RESULT line that counts lines.
-- Arguments: PATH SKU LINES. Each line has its own key.

local threads = {}

function setup(thread)
  table.insert(threads, thread)
end

function init(arguments)
  local path, lines = arguments[1], tonumber(arguments[3])
  sku, sent, deducted, answered = arguments[2], 0, 0, 0
  head = "POST " .. path .. " HTTP/1.1\r\nHost: " .. wrk.host
    .. "\r\nContent-Type: application/json\r\nContent-Length: "
  parts = {}
  for line = 1, lines do
    parts[line] = (line == 1 and '{"lines":[' or ",") .. '{"sku":"' .. sku .. '","key":"' .. sku .. "-"
      .. line .. "-"
  end
  per_request = lines
end

function request()
  sent = sent + 1
  local body = table.concat(parts, sent .. '"}') .. sent .. '"}]}'
  return head .. #body .. "\r\n\r\n" .. body
end

function response(status, _, body)
  answered = answered + per_request
  if status == 200 then
    local _, count = body:gsub('"status":200,"code":"deducted"', "")
    deducted = deducted + count
  end
end

function done(summary, latency)
  local errors, thread = summary.errors, threads[1]
  local answered, deducted = thread:get("answered"), thread:get("deducted")
  io.write(string.format(
    'RESULT {"seconds": %.6f, "requests": %d, "refused": %d, "broken": %d, '
      .. '"p50_ms": %.3f, "p99_ms": %.3f}\n',
    summary.duration / 1e6, answered, answered - deducted,
    errors.connect + errors.read + errors.write + errors.timeout,
    latency:percentile(50) / 1e3, latency:percentile(99) / 1e3))
end
