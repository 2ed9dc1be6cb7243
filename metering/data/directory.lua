-- Replace one entry of the directory, if it still is what the asker has seen, and note that it has changed.
--
-- KEYS[1]   wb:1:directory   hash
-- ARGV      field, the entry that was seen ('' for none), the one to put, a name for this life of the hash should it
--           have none, how many changes are kept
-- returns   the entry that is there now

local key, field = KEYS[1], ARGV[1]
local now = redis.call('HGET', key, field) or ''
if now ~= ARGV[2] then
  return now
end
local life, number = string.match(redis.call('HGET', key, 'revision') or '', '^(%w+):(%d+)$')
number = (tonumber(number) or 0) + 1
redis.call('HSET', key, field, ARGV[3],
  string.format('change:%d', number), field,
  'revision', string.format('%s:%d', life or ARGV[4], number))
redis.call('HDEL', key, string.format('change:%d', number - tonumber(ARGV[5])))
return ARGV[3]
