-- Site policy on elastic jobs, for job_submit.lua: who may submit them, where, how large.
--
-- Promise: no file, no network, no command; a few microseconds for a job that is not elastic and a few tens for
-- one that is; what a job must not do it says in one sentence to the user; an error of its own lets the job through, and is
-- logged, because a policy that fails must not stop a cluster. slurmctld holds its lock while this runs.
-- Limit: it knows the job as it was submitted, not what runs. Lua 5.1 to 5.4.
--
-- `dofile` it from your own job_submit.lua, as the job_submit.lua beside this file does.

local elastic = {}

local LARGEST = 1000000000
local MOST_GPUS = 100000
local MOST_GUARD = 100
local PREFIX = "[Ee][Ll][Aa][Ss][Tt][Ii][Cc]:"
-- The same as in protocol/request.py and elastic_request.c; %s would hang on slurmctld's locale.
local SEPARATORS = "; \t\n\r\f\v"
local LONGEST = 1000
-- Sizes tried before the answer is left to selasticd: slurmctld waits meanwhile.
local PATIENCE = 4096
local KEYS = { "gpus", "batch", "step", "group", "slice", "lr", "combine", "weight", "via", "until", "guard", "speedup",
	"deadline", "budget" }
local WITH_BATCH = { "slice", "lr", "combine", "until", "guard" }
local LR_RULES = { "auto", "none", "linear", "sqrt", "sde", "adascale" }
local COMBINES = { "mean", "adasum" }
local MECHANISMS = { "companion", "component", "shrink", "requeue", "expand" }
local ENDS = { "epochs", "quality" }
local DEFAULT_VIA = { "shrink", "companion", "component" }

local function holds(list, word)
	for _, entry in ipairs(list) do
		if entry == word then return true end
	end
	return false
end

-- Pieces of `text` between the single characters `mark`; an empty text has one empty piece.
local function split(text, mark)
	local pieces, from = {}, 1
	while true do
		local at = string.find(text, mark, from, true)
		pieces[#pieces + 1] = string.sub(text, from, (at or #text + 1) - 1)
		if not at then return pieces end
		from = at + 1
	end
end

local function refuse(format, ...)
	error({ sentence = string.format(format, ...) }, 0)
end

local function whole(key, value, most)
	local number = #value <= 10 and string.match(value, "^[0-9]+$") and tonumber(value, 10)
	if not number or number < 1 or number > most then
		refuse("%s=%s is not accepted; accepted: a whole number from 1 to %d", key, value, most)
	end
	return number
end

local function bounds(key, value, most)
	local mark = string.find(value, ":", 1, true) and ":" or "%-"
	local first, second = string.match(value, "^(.-)" .. mark .. "(.*)$")
	local low = whole(key, first or value, most)
	local high = second and whole(key, second, most) or low
	if low > high then
		refuse("%s=%s has its minimum above its maximum; accepted: %s=MIN-MAX, MIN <= MAX", key, value, key)
	end
	return low, high
end

local function one_of(key, value, accepted)
	if not holds(accepted, value) then
		refuse("%s=%s is not known; accepted: %s", key, value, table.concat(accepted, ", "))
	end
	return value
end

local function decimal(value)
	local integer, fraction = string.match(value, "^([0-9]+)%.([0-9]+)$")
	integer, fraction = integer or string.match(value, "^[0-9]+$"), fraction or ""
	return integer and #integer <= 6 and #fraction <= 6 and tonumber(value)
end

local function positive(key, value, most)
	local number = decimal(value)
	if not number or number <= 0 or number > most then
		refuse("%s=%s is not accepted; accepted: a number above 0, at most %d", key, value, most)
	end
	return number
end

local function speedup(value)
	local number = value == "linear" and 1 or decimal(value)
	if not number or number <= 0.5 or number > 1 then
		refuse("speedup=%s is not accepted; accepted: linear, or a number above 0.5, at most 1", value)
	end
	return number
end

local UNITS = { [""] = true, second = true, minute = true, hour = true, day = true, week = true }
local DAYS = { 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31 }

local function is_clock(text)
	local hour, minute, second = string.match(text, "^([0-9][0-9]?):([0-9][0-9])(.*)$")
	if not hour or tonumber(hour) > 23 or tonumber(minute) > 59 then return false end
	return second == "" or string.match(second, "^:[0-5][0-9]$") ~= nil
end

local function is_date(text)
	local year, month, day = string.match(text, "^(2[0-9][0-9][0-9])-([0-9][0-9])-([0-9][0-9])$")
	year, month, day = tonumber(year), tonumber(month), tonumber(day)
	if not year or month < 1 or month > 12 then return false end
	local leap = (year % 4 == 0 and year % 100 ~= 0) or year % 400 == 0
	return day >= 1 and day <= DAYS[month] + (month == 2 and leap and 1 or 0)
end

local function deadline(value)
	local count, unit = string.match(value, "^now%+([0-9]+)(.*)$")
	local ahead = count and #count <= 9 and (UNITS[unit] or (#unit > 1 and UNITS[string.match(unit, "^(.*)s$")]))
	local date, clock = string.match(value, "^([^T]*)T?(.*)$")
	local dated = is_date(date) and (date == value or is_clock(clock))
	if not ahead and not is_clock(value) and not dated then
		refuse("deadline=%s is not accepted; accepted: HH:MM[:SS], YYYY-MM-DD[THH:MM[:SS]], now+COUNT[UNIT] such "
			.. "as now+8hours", value)
	end
	return value
end

local function words(body)
	local found = {}
	for _, word in ipairs(split(body, ",")) do
		local key, value = string.match(word, "^([^=]*)=(.+)$")
		if not key then
			refuse("'%s' in the elastic request is not KEY=VALUE; accepted keys: %s", word, table.concat(KEYS, ", "))
		end
		if not holds(KEYS, key) then
			refuse("unknown key '%s' in the elastic request; accepted keys: %s", key, table.concat(KEYS, ", "))
		end
		if found[key] then refuse("%s= stands twice in the elastic request; give it once", key) end
		found[key] = value
	end
	return found
end

local function range(low, high)
	return low == high and string.format("%d", low) or string.format("%d-%d", low, high)
end

local function check_feasible(r)
	local size, first = r.min_gpus, nil
	for _ = 1, PATIENCE do
		if size > r.max_gpus then break end
		if size % r.group == 0 then
			local replicas = math.floor(size / r.group)
			first = first or replicas
			if r.max_batch == 0 then return end
			if replicas > r.max_batch then
				-- From here on there is less than one sample for each.
				size = r.max_gpus + 1
				break
			end
			local unit = replicas * r.slice
			if math.floor(r.max_batch / unit) * unit >= r.min_batch then return end
		end
		size = size + r.step
	end
	if size <= r.max_gpus then return end
	if not first then
		refuse("gpus=%s holds no multiple of group=%d at step=%d; accepted: a range with at least one",
			range(r.min_gpus, r.max_gpus), r.group, r.step)
	end
	refuse("batch=%s cannot be shared out evenly at any size in gpus=%s; accepted: a range holding a multiple of %d",
		range(r.min_batch, r.max_batch), range(r.min_gpus, r.max_gpus), first * r.slice)
end

local function parse(text)
	if #text > LONGEST then
		refuse("the elastic request has %d characters; accepted: at most %d", #text, LONGEST)
	end
	local given = words((string.gsub(text, "^" .. PREFIX, "", 1)))
	if not given.gpus then
		refuse("elastic request '%s' has no gpus=; accepted: gpus=MIN-MAX,batch=MIN-MAX", text)
	end
	if given.batch and given.speedup then refuse("speedup= does not go with batch=; accepted: one of them") end
	for _, key in ipairs(given.batch and {} or WITH_BATCH) do
		if given[key] then refuse("%s= goes with batch= alone; accepted: both or neither", key) end
	end
	local r = {}
	r.min_gpus, r.max_gpus = bounds("gpus", given.gpus, MOST_GPUS)
	r.min_batch, r.max_batch = 0, 0
	if given.batch then r.min_batch, r.max_batch = bounds("batch", given.batch, LARGEST) end
	r.group = whole("group", given.group or "1", MOST_GPUS)
	r.step = given.step and whole("step", given.step, MOST_GPUS) or r.group
	r.slice = whole("slice", given.slice or "1", LARGEST)
	r.lr = one_of("lr", given.lr or "auto", LR_RULES)
	r.combine = one_of("combine", given.combine or "mean", COMBINES)
	r.weight = positive("weight", given.weight or "1", 1000)
	r.via = {}
	for _, word in ipairs(given.via and split(given.via, "+") or DEFAULT_VIA) do
		r.via[#r.via + 1] = one_of("via", word, MECHANISMS)
	end
	r["until"] = one_of("until", given["until"] or "epochs", ENDS)
	r.guard = given.guard and whole("guard", given.guard, MOST_GUARD) or 0
	r.speedup = given.speedup and speedup(given.speedup) or 0
	r.deadline = given.deadline and deadline(given.deadline) or ""
	r.budget = given.budget and positive("budget", given.budget, 999999) or 0
	if r.combine == "adasum" and r.lr ~= "auto" and r.lr ~= "none" then
		refuse("lr=%s does not go with combine=adasum; accepted: lr=none", r.lr)
	end
	check_feasible(r)
	return r
end

-- The request as a table, or nil and one sentence. The same verdicts and sentences as selasticd's own parser.
function elastic.parse(text)
	local good, result = pcall(parse, text)
	if good then return result end
	if type(result) == "table" then return nil, result.sentence end
	error(result, 0)
end

-- The request inside a comment, prefix (in any case) included, or nil.
function elastic.find(comment)
	local request = "(" .. PREFIX .. "[^" .. SEPARATORS .. "]*)"
	return string.match(comment or "", "^" .. request) or string.match(comment or "", "[" .. SEPARATORS .. "]" .. request)
end

-- What --elastic said, where the SPANK plugin could not write it into the comment.
local function from_plugin(job)
	for _, entry in pairs(job.spank_job_env or {}) do
		local request = string.match(entry, "^ELASTIC=(elastic:.+)$")
		if request then return request end
	end
	return nil
end

-- Names of the partitions a job may run in; those of the default partition when it names none.
local function partitions_of(job, parts)
	if job.partition and job.partition ~= "" then return split(job.partition, ",") end
	for name, part in pairs(parts or {}) do
		if part.flag_default == 1 then return { name } end
	end
	return {}
end

local function account_of(job)
	return job.account or job.default_account or ""
end

-- A cap is a number for all partitions, or a table: partition -> number. nil: no cap.
local function cap_of(cap, partition)
	if type(cap) == "table" then return cap[partition] end
	return cap
end

local function check_policy(policy, r, job, parts)
	if policy.users and not holds(policy.users, job.user_name) then
		refuse("elastic jobs are not open to user %s here; leave the elastic request out", job.user_name or "?")
	end
	if policy.accounts and not holds(policy.accounts, account_of(job)) then
		refuse("elastic jobs are not open to account '%s' here; accepted accounts: %s", account_of(job),
			table.concat(policy.accounts, ", "))
	end
	for _, partition in ipairs(partitions_of(job, parts)) do
		if policy.partitions and not holds(policy.partitions, partition) then
			refuse("partition %s takes no elastic jobs; accepted partitions: %s", partition,
				table.concat(policy.partitions, ", "))
		end
		local cap = cap_of(policy.max_gpus, partition)
		if cap and r.max_gpus > cap then
			refuse("gpus=%s is more than this site allows an elastic job in partition %s; accepted: at most %d",
				range(r.min_gpus, r.max_gpus), partition, cap)
		end
	end
	if policy.max_weight and r.weight > policy.max_weight then
		refuse("weight=%g is more than this site allows; accepted: at most %g", r.weight, policy.max_weight)
	end
	for _, mechanism in ipairs(policy.mechanisms and r.via or {}) do
		if not holds(policy.mechanisms, mechanism) then
			refuse("via=%s is not allowed here; accepted: via=%s", mechanism, table.concat(policy.mechanisms, "+"))
		end
	end
end

-- uid: who asks; root is the site itself, and only the grammar binds it.
local function check(policy, text, job, parts, uid)
	local r, sentence = elastic.parse(text)
	if not r then refuse("%s", sentence) end
	if uid ~= 0 or policy.exempt_root == false then check_policy(policy, r, job, parts) end
end

-- A job of a partition that preempts others may start no sooner than `notice_s` from now: time for elastic jobs to give
-- way in place, after which Slurm finds nothing to preempt.
local function give_notice(policy, job, parts)
	if not policy.notice_s or string.find(job.comment or "", "selastic:companion-of=", 1, true) then return end
	local longest = 0
	for _, partition in ipairs(partitions_of(job, parts)) do
		longest = math.max(longest, policy.notice_s[partition] or 0)
	end
	local earliest = os.time() + longest
	if longest > 0 and (job.begin_time or 0) < earliest then job.begin_time = earliest end
end

local function submit(policy, job, parts, uid)
	give_notice(policy, job, parts)
	-- The first component of a heterogeneous job speaks for all.
	local component = job.het_job_offset or 0
	if component > 0 and component < 0xfffffffe then return end
	local comment = job.comment or ""
	local request = elastic.find(comment)
	local plugin = not request and from_plugin(job)
	if not request and not plugin then return end
	check(policy, request or plugin, job, parts, uid)
	if plugin then job.comment = comment == "" and plugin or plugin .. ";" .. comment end
end

local function modify(policy, job, record, parts, uid)
	local request = job.comment and elastic.find(job.comment)
	if not request then return end
	-- Only what the update changes is in `job`; the rest is in the job's record.
	local whole_job = {
		partition = job.partition or record.partition,
		account = job.account or record.account,
		user_name = record.user_name,
	}
	check(policy, request, whole_job, parts, uid)
end

-- Runs a check; a refusal reaches the user, a failure of ours only the log.
local function guarded(run, ...)
	local good, problem = pcall(run, ...)
	if good then return slurm.SUCCESS end
	if type(problem) == "table" then
		-- It quotes the request, whose escape codes must not steer the terminal of who reads the log.
		local sentence = string.gsub(problem.sentence, "%c", "?")
		-- scontrol shows its user no sentence of a plugin, so the log has it too.
		slurm.log_info("slurm-elastic: refused: %s", sentence)
		slurm.log_user("%s", sentence)
		return slurm.ERROR
	end
	slurm.log_error("slurm-elastic: a job went through unchecked: %s", tostring(problem))
	return slurm.SUCCESS
end

-- For slurm_job_submit: slurm.SUCCESS, or slurm.ERROR after telling the user why.
function elastic.submit(policy, job, parts, uid)
	return guarded(submit, policy, job, parts, uid)
end

-- For slurm_job_modify: looks at updates of a comment alone, so that it never stands in the way of a resize.
function elastic.modify(policy, job, record, parts, uid)
	return guarded(modify, policy, job, record, parts, uid)
end

return elastic
