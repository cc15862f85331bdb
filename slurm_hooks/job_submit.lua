-- Elastic jobs at this site. Goes beside slurm.conf, which says JobSubmitPlugins=lua. A change counts from the next submission.
-- A site with its own job_submit.lua takes over the lines that load the library, the policy, and the two calls.

-- Without the library, as after slurm-elastic was removed, all jobs pass: an error here keeps slurmctld from starting.
local found, elastic = pcall(dofile, "/usr/share/slurm-elastic/elastic.lua")
if not found then slurm.log_error("slurm-elastic: jobs go through unchecked: %s", tostring(elastic)) end

local policy = {
	-- Who may submit elastic jobs. Leave a list out to allow all.
	-- users = { "alice", "bob" },
	-- accounts = { "research" },
	-- partitions = { "gpu" },

	-- Most GPUs that a job may ask for: one number, or one for each partition.
	-- max_gpus = { gpu = 64, debug = 8 },

	-- Largest weight=. A job of weight 2 has twice the say of others; selasticd counts no more than its own max_weight.
	max_weight = 1,

	-- Ways of resizing that jobs may allow. "requeue" ends a job and starts it again at its new size.
	-- mechanisms = { "shrink", "companion", "component" },

	-- Jobs of these partitions, which preempt others, start no sooner than so many seconds after their submission:
	-- time for elastic jobs to give way without being preempted. At least selasticd's round_interval_s and 10 more.
	-- notice_s = { urgent = 20 },

	-- The policy does not bind root unless it says so.
	-- exempt_root = false,
}

function slurm_job_submit(job_desc, part_list, submit_uid)
	if not found then return slurm.SUCCESS end
	return elastic.submit(policy, job_desc, part_list, submit_uid)
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
	if not found then return slurm.SUCCESS end
	return elastic.modify(policy, job_desc, job_rec, part_list, modify_uid)
end

return slurm.SUCCESS
