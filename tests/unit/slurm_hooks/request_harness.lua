-- Runs slurm_hooks/elastic.lua outside slurmctld: commands on standard input, one answer per line.
-- `parse TEXT`, `find TEXT`: what the library says. `time N TEXT`: microseconds per submission of such a job.
local said
slurm = { SUCCESS = 0, ERROR = -1, log_user = function(...) said = string.format(...) end, log_error = error, log_info = function() end }
local elastic = dofile(arg[1])

local answers = {}
function answers.parse(text)
	local request, sentence = elastic.parse(text)
	return request and "ok" or "refused: " .. sentence
end
function answers.find(text)
	return elastic.find(text) or "none"
end
function answers.time(text)
	local rounds, comment = string.match(text, "^(%d+) (.*)$")
	local policy = { max_gpus = { gpu = 64 }, partitions = { "gpu" }, max_weight = 1 }
	local start = os.clock()
	for _ = 1, tonumber(rounds) do
		local rc = elastic.submit(policy, { comment = comment, partition = "gpu" }, {}, 1000)
		if rc ~= slurm.SUCCESS then return "refused: " .. said end
	end
	return string.format("%.3f", (os.clock() - start) * 1e6 / tonumber(rounds))
end

for line in io.lines() do
	local command, text = string.match(line, "^(%a+) (.*)$")
	print(answers[command](text))
end
