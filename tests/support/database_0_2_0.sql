BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0200');
CREATE TABLE allocations (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	job_id BIGINT NOT NULL, 
	generation BIGINT NOT NULL, 
	start DOUBLE NOT NULL, 
	"end" DOUBLE, 
	gpus BIGINT NOT NULL, 
	nodes BIGINT NOT NULL, 
	node_list TEXT NOT NULL, 
	batch BIGINT NOT NULL, 
	samples BIGINT NOT NULL, 
	steps BIGINT NOT NULL, 
	pause_s DOUBLE NOT NULL, 
	reason VARCHAR(64) NOT NULL, 
	resize BIGINT NOT NULL, 
	first_step BIGINT, 
	first_samples BIGINT, 
	CONSTRAINT fk_allocations_job_id FOREIGN KEY(job_id) REFERENCES jobs (job_id) ON DELETE CASCADE
);
CREATE TABLE decisions (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	job_id BIGINT NOT NULL, 
	at DOUBLE NOT NULL, 
	gpus_from BIGINT NOT NULL, 
	gpus_to BIGINT NOT NULL, 
	batch_from BIGINT NOT NULL, 
	batch_to BIGINT NOT NULL, 
	reason VARCHAR(64) NOT NULL, 
	value DOUBLE, 
	gain DOUBLE, 
	evidence JSON NOT NULL, 
	alternatives JSON NOT NULL, 
	mechanism VARCHAR(255) NOT NULL, 
	mode VARCHAR(16) NOT NULL, 
	CONSTRAINT fk_decisions_job_id FOREIGN KEY(job_id) REFERENCES jobs (job_id) ON DELETE CASCADE
);
CREATE TABLE events (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	job_id BIGINT NOT NULL, 
	at DOUBLE NOT NULL, 
	kind VARCHAR(64) NOT NULL, 
	who VARCHAR(255) NOT NULL, 
	detail JSON NOT NULL
);
CREATE TABLE in_use (
	job_id BIGINT NOT NULL, 
	generation BIGINT NOT NULL, 
	pieces JSON NOT NULL, 
	batch BIGINT NOT NULL, 
	since DOUBLE NOT NULL, 
	registered_at DOUBLE NOT NULL, 
	CONSTRAINT pk_in_use PRIMARY KEY (job_id), 
	CONSTRAINT fk_in_use_job_id FOREIGN KEY(job_id) REFERENCES jobs (job_id) ON DELETE CASCADE
);
CREATE TABLE jobs (
	job_id BIGINT NOT NULL, 
	user VARCHAR(255) NOT NULL, 
	uid BIGINT NOT NULL, 
	name TEXT NOT NULL, 
	account VARCHAR(255) NOT NULL, 
	partition TEXT NOT NULL, 
	request TEXT NOT NULL, 
	managed BOOLEAN NOT NULL, 
	reason VARCHAR(64) NOT NULL, 
	detail TEXT NOT NULL, 
	submit_time DOUBLE NOT NULL, 
	start_time DOUBLE, 
	end_time DOUBLE, 
	state VARCHAR(64) NOT NULL, 
	ended BOOLEAN NOT NULL, 
	CONSTRAINT pk_jobs PRIMARY KEY (job_id)
);
CREATE TABLE lease (
	name VARCHAR(16) NOT NULL, 
	fence BIGINT NOT NULL, 
	beat BIGINT NOT NULL, 
	place VARCHAR(255) NOT NULL, 
	who VARCHAR(255) NOT NULL, 
	lease_s DOUBLE NOT NULL, 
	renewed DOUBLE NOT NULL, 
	CONSTRAINT pk_lease PRIMARY KEY (name)
);
CREATE TABLE pins (
	job_id BIGINT NOT NULL, 
	gpus BIGINT NOT NULL, 
	CONSTRAINT pk_pins PRIMARY KEY (job_id), 
	CONSTRAINT fk_pins_job_id FOREIGN KEY(job_id) REFERENCES jobs (job_id) ON DELETE CASCADE
);
CREATE TABLE priors (
	id INTEGER NOT NULL, 
	program VARCHAR(255) NOT NULL, 
	gpu_type VARCHAR(255) NOT NULL, 
	learned_at DOUBLE NOT NULL, 
	runs BIGINT NOT NULL, 
	prior JSON NOT NULL, 
	CONSTRAINT pk_priors PRIMARY KEY (id)
);
CREATE TABLE programs (
	job_id BIGINT NOT NULL, 
	program VARCHAR(255) NOT NULL, 
	gpu_type VARCHAR(255) NOT NULL, 
	CONSTRAINT pk_programs PRIMARY KEY (job_id), 
	CONSTRAINT fk_programs_job_id FOREIGN KEY(job_id) REFERENCES jobs (job_id) ON DELETE CASCADE
);
CREATE TABLE reports (
	job_id BIGINT NOT NULL, 
	at DOUBLE NOT NULL, 
	generation BIGINT NOT NULL, 
	step BIGINT NOT NULL, 
	gpus BIGINT NOT NULL, 
	nodes BIGINT NOT NULL, 
	batch BIGINT NOT NULL, 
	micro_batch BIGINT NOT NULL, 
	accumulation BIGINT NOT NULL, 
	steps BIGINT NOT NULL, 
	step_time_median_s DOUBLE NOT NULL, 
	step_time_p90_s DOUBLE NOT NULL, 
	samples_per_s DOUBLE NOT NULL, 
	samples BIGINT NOT NULL, 
	epoch BIGINT NOT NULL, 
	noise_scale DOUBLE NOT NULL, 
	input_wait_share DOUBLE NOT NULL, 
	memory_peak_mb DOUBLE NOT NULL, 
	comm_share DOUBLE NOT NULL, 
	bottleneck VARCHAR(32) NOT NULL, 
	bottleneck_share DOUBLE NOT NULL, 
	bottleneck_rank BIGINT NOT NULL, 
	bottleneck_node VARCHAR(255) NOT NULL, 
	CONSTRAINT pk_reports PRIMARY KEY (job_id, at, generation, step), 
	CONSTRAINT fk_reports_job_id FOREIGN KEY(job_id) REFERENCES jobs (job_id) ON DELETE CASCADE
)
 WITHOUT ROWID

;
CREATE TABLE resizes (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	job_id BIGINT NOT NULL, 
	open_job BIGINT, 
	state VARCHAR(16) NOT NULL, 
	phases JSON NOT NULL, 
	detail TEXT NOT NULL, 
	keep JSON NOT NULL, 
	"add" JSON NOT NULL, 
	gpus BIGINT NOT NULL, 
	batch BIGINT NOT NULL, 
	reason VARCHAR(64) NOT NULL, 
	wait_s DOUBLE NOT NULL, 
	CONSTRAINT fk_resizes_job_id FOREIGN KEY(job_id) REFERENCES jobs (job_id) ON DELETE CASCADE, 
	CONSTRAINT uq_resizes_open_job UNIQUE (open_job)
);
CREATE TABLE rollups (
	job_id BIGINT NOT NULL, 
	hour BIGINT NOT NULL, 
	gpus BIGINT NOT NULL, 
	nodes BIGINT NOT NULL, 
	batch BIGINT NOT NULL, 
	micro_batch BIGINT NOT NULL, 
	accumulation BIGINT NOT NULL, 
	count BIGINT NOT NULL, 
	step_time DOUBLE NOT NULL, 
	samples_per_s DOUBLE NOT NULL, 
	noise_scale DOUBLE NOT NULL, 
	last_at DOUBLE NOT NULL, 
	CONSTRAINT pk_rollups PRIMARY KEY (job_id, hour, gpus, nodes, batch, micro_batch, accumulation), 
	CONSTRAINT fk_rollups_job_id FOREIGN KEY(job_id) REFERENCES jobs (job_id) ON DELETE CASCADE
)
 WITHOUT ROWID

;
CREATE TABLE tokens (
	digest VARCHAR(64) NOT NULL, 
	job_id BIGINT NOT NULL, 
	uid BIGINT NOT NULL, 
	created DOUBLE NOT NULL, 
	CONSTRAINT pk_tokens PRIMARY KEY (digest), 
	CONSTRAINT fk_tokens_job_id FOREIGN KEY(job_id) REFERENCES jobs (job_id) ON DELETE CASCADE
);
CREATE INDEX ix_jobs_ended ON jobs (ended);
CREATE INDEX ix_events_job_id_id ON events (job_id, id);
CREATE INDEX ix_events_at ON events (at);
CREATE INDEX ix_tokens_job_id ON tokens (job_id);
CREATE INDEX ix_allocations_job_id_start ON allocations (job_id, start);
CREATE INDEX ix_allocations_start ON allocations (start);
CREATE INDEX ix_reports_at ON reports (at);
CREATE INDEX ix_decisions_at ON decisions (at);
CREATE INDEX ix_decisions_job_id_id ON decisions (job_id, id);
CREATE INDEX ix_resizes_job_id_id ON resizes (job_id, id);
DELETE FROM "sqlite_sequence";
COMMIT;
