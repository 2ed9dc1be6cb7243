-- All of one tenant at one moment: the pairs of each hash of KEYS, in their order.
local found = {}
for index, key in ipairs(KEYS) do
  found[index] = redis.call('HGETALL', key)
end
return found
