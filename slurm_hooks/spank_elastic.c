/*
 * SPANK plugin: `sbatch | salloc | srun --elastic=gpus=2-32,batch=256-8192`.
 *
 * Promise: a request is checked when the job is submitted, and a bad one refuses the submission with one sentence.
 * A good one goes, canonical form `elastic:...`, into the job's comment (where selasticd reads it), into the job's
 * environment as SELASTIC_REQUEST, and into SPANK_ELASTIC of prologs, epilogs and job_submit plugins. On compute nodes
 * it does nothing: it runs in the submitting command alone, and nothing that it does can fail a running job.
 * Limit: putting the comment in place needs two symbols that sbatch, salloc and srun export but Slurm does not
 * document: the options being filled in (`opt`), and `slurm_option_set`, which cli_filter plugins use. They are the
 * same in 22.05 to 26.05. Where a build hides them the plugin says nothing and job_submit.lua fills the comment in.
 *
 * Arguments in plugstack.conf:
 *   open_mode=append    (default) an elastic batch job appends to its output, so that a restart keeps what was written
 *   open_mode=site      leave it as the site has it
 *   comments=check      (default) an elastic request written as --comment=elastic:... is checked too
 *   comments=ignore     leave comments alone
 */
#define _GNU_SOURCE
#include "elastic_request.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Everything else is built hidden: a plugin shares one name space with Slurm and with other plugins. */
#pragma GCC visibility push(default)
#include <slurm/spank.h>

SPANK_PLUGIN(elastic, 1);
#pragma GCC visibility pop

/* Slurm takes comments of up to 1024 characters. */
#define COMMENT_ROOM 1025
/* Where Slurm leaves the option for the job's own commands, and reads it as if it had been given to them. */
#define INHERITED "SLURM_SPANK__SLURM_SPANK_OPTION_elastic_elastic"

typedef int option_set(void *opt, const char *name, const char *value, bool early);
typedef char *option_get(void *opt, const char *name);
typedef bool option_isset(void *opt, const char *name);

/* How to reach the options that the submitting command is filling in; all NULL where the build hides them. */
struct options {
	void *opt;
	option_set *set;
	option_get *get;
	option_isset *isset;
};

static char request[sizeof(ELASTIC_PREFIX) + ELASTIC_LONGEST];
/* The request of the first component, and how many components (1 for an ordinary job) have been seen. */
static char leading[sizeof(request)];
static int components;
static bool append_output = true;
static bool check_comments = true;

static bool submitting(void)
{
	spank_context_t context = spank_context();

	return context == S_CTX_ALLOCATOR || context == S_CTX_LOCAL;
}

/* srun inside a job: Slurm gives it the job's own --elastic again, from the environment, and there is nothing to do. */
static bool is_step(void)
{
	return spank_context() == S_CTX_LOCAL && getenv("SLURM_JOB_ID") != NULL;
}

/*
 * Ends sbatch, salloc or srun, which have asked Slurm for nothing yet. Returning an error instead would add Slurm's own
 * two lines about a failed plugin, and would not stop the submission where plugstack.conf says `optional`.
 */
__attribute__((noreturn, format(printf, 1, 2))) static void refuse(const char *format, ...)
{
	char sentence[ELASTIC_MESSAGE + 64];
	const char *status = getenv("SLURM_EXIT_ERROR");
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(sentence, sizeof(sentence), format, arguments);
	va_end(arguments);
	slurm_error("%s", sentence);
	exit(status && atoi(status) ? atoi(status) : EXIT_FAILURE);
}

static struct options find_options(void)
{
	struct options found = {
		.opt = dlsym(RTLD_DEFAULT, "opt"),
		.set = (option_set *)dlsym(RTLD_DEFAULT, "slurm_option_set"),
		.get = (option_get *)dlsym(RTLD_DEFAULT, "slurm_option_get"),
		.isset = (option_isset *)dlsym(RTLD_DEFAULT, "slurm_option_isset"),
	};

	if (found.opt == NULL || found.set == NULL || found.get == NULL || found.isset == NULL)
		memset(&found, 0, sizeof(found));
	return found;
}

/* Called for each --elastic that is met, in a script's #SBATCH lines first and on the command line after: the last wins. */
static int take_option(int val, const char *argument, int remote)
{
	char message[ELASTIC_MESSAGE];

	(void)val;
	if (remote || !submitting() || is_step())
		return 0;
	if (elastic_request_check(argument, message, sizeof(message)))
		refuse("--elastic: %s", message);
	if (elastic_request_prefixed(argument))
		argument += ELASTIC_PREFIX_LENGTH;
	snprintf(request, sizeof(request), ELASTIC_PREFIX "%s", argument);
	return 0;
}

static void join_comment(struct options options, const char *comment)
{
	char joined[COMMENT_ROOM];
	size_t length;
	const char *found = elastic_request_find(comment, &length);

	if (found != NULL && length == strlen(request) &&
	    memcmp(found + ELASTIC_PREFIX_LENGTH, request + ELASTIC_PREFIX_LENGTH, length - ELASTIC_PREFIX_LENGTH) == 0)
		return;
	if (found != NULL)
		refuse("--elastic: the job's comment holds another elastic request, '%.*s'; give one of the two", (int)length,
		       found);
	if ((size_t)snprintf(joined, sizeof(joined), "%s;%s", request, comment) >= sizeof(joined))
		refuse("--elastic: the job's comment leaves no room for the request; accepted: at most %d characters",
		       COMMENT_ROOM - (int)sizeof(request));
	options.set(options.opt, "comment", *comment ? joined : request, false);
}

static void check_comment(const char *comment)
{
	char text[sizeof(request)], message[ELASTIC_MESSAGE];
	size_t length;
	const char *found = elastic_request_find(comment, &length);

	if (found == NULL)
		return;
	snprintf(text, sizeof(text), "%.*s", (int)length, found);
	if (elastic_request_check(text, message, sizeof(message)))
		refuse("--comment: %s", message);
}

static void read_arguments(int count, char **arguments)
{
	for (int i = 0; i < count; i++) {
		if (strcmp(arguments[i], "open_mode=site") == 0)
			append_output = false;
		else if (strcmp(arguments[i], "comments=ignore") == 0)
			check_comments = false;
		else if (strcmp(arguments[i], "open_mode=append") && strcmp(arguments[i], "comments=check"))
			slurm_error("spank_elastic: argument '%s' in plugstack.conf is not known; accepted: "
				    "open_mode=append|site, comments=check|ignore", arguments[i]);
	}
}

int slurm_spank_init(spank_t spank, int count, char **arguments)
{
	static struct spank_option option = {
		.name = "elastic",
		.arginfo = "gpus=MIN-MAX,batch=MIN-MAX[,...]",
		.usage = "GPUs and global batch sizes that this training job accepts, for selasticd to choose from",
		.has_arg = 1,
		.cb = take_option,
	};

	if (submitting()) {
		read_arguments(count, arguments);
		/* A job that submits another one must not hand it its own request; its own steps may know it. */
		unsetenv(INHERITED);
		if (!is_step())
			unsetenv("SELASTIC_REQUEST");
	}
	/* Compute nodes need the option as well: Slurm hands it to every step and complains about one it does not know. */
	return spank_option_register(spank, &option) == ESPANK_SUCCESS ? 0 : -1;
}

static void hand_over(spank_t spank, struct options options, const char *comment)
{
	if (options.opt)
		join_comment(options, comment);
	if (options.opt && append_output && !options.isset(options.opt, "open-mode"))
		options.set(options.opt, "open-mode", "append", false);
	setenv("SELASTIC_REQUEST", request, 1);
	spank_job_control_setenv(spank, "ELASTIC", request, 1);
}

/* Called once for each component of a heterogeneous job, after its options were read and before Slurm is asked. */
int slurm_spank_init_post_opt(spank_t spank, int count, char **arguments)
{
	struct options options;
	char *comment;

	(void)count;
	(void)arguments;
	if (!submitting() || is_step())
		return 0;
	options = find_options();
	comment = options.opt ? options.get(options.opt, "comment") : NULL;
	if (components++ == 0) {
		memcpy(leading, request, sizeof(leading));
		if (request[0])
			hand_over(spank, options, comment ? comment : "");
	} else if (request[0] && strcmp(request, leading) != 0) {
		/* An equal one is the leader's: Slurm hands it to the others as well. */
		refuse("--elastic: give it to the first component of a heterogeneous job; it speaks for the whole job");
	}
	if (!request[0] && comment && check_comments)
		check_comment(comment);
	request[0] = '\0';
	return 0;
}
