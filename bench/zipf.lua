-- Random numbers for the scripts of wrk.

local DRAWS = 100000

-- Numbers from 1 to `count` under a Zipf law, the same in each run: number k is drawn in proportion to k^-exponent.
return function(count, exponent)
  local below, sum = {}, 0
  for number = 1, count do
    sum = sum + number ^ -exponent
    below[number] = sum
  end
  math.randomseed(1)
  local draws = {}
  for index = 1, DRAWS do
    local value, low, high = math.random() * sum, 1, count
    while low < high do
      local middle = math.floor((low + high) / 2)
      if below[middle] > value then high = middle else low = middle + 1 end
    end
    draws[index] = low
  end
  return draws
end
