-- Let go of a lock, if it is still the asker's.
--
-- KEYS[1]   a lock    text
-- ARGV      who holds it
-- returns   1 if it was so

if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
