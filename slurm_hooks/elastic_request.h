/*
 * The elastic request, checked in C: the same grammar, verdicts and sentences as protocol/request.py.
 *
 * Promise: pure; no I/O, no allocation, no global state; safe on any bytes.
 * Limit: it answers yes or no with a sentence; what the request means is the Python parser's to say.
 */
#ifndef ELASTIC_REQUEST_H
#define ELASTIC_REQUEST_H

#include <stdbool.h>
#include <stddef.h>

#define ELASTIC_PREFIX "elastic:"
#define ELASTIC_PREFIX_LENGTH (sizeof(ELASTIC_PREFIX) - 1)
/* Longest request that is looked at: Slurm refuses comments of more than 1024 characters. */
#define ELASTIC_LONGEST 1000
/* Room for the longest sentence: it quotes the request at most once. */
#define ELASTIC_MESSAGE (ELASTIC_LONGEST + 512)

/* Whether the text begins with the prefix, in any case. */
bool elastic_request_prefixed(const char *text);

/*
 * Check a request, with or without its prefix.
 * Returns 0 when it is accepted; otherwise -1 with one sentence in message[size].
 */
int elastic_request_check(const char *text, char *message, size_t size);

/*
 * Find the request inside a job comment, prefix included.
 * Returns its start, with its length in *length; NULL when the comment holds none.
 */
const char *elastic_request_find(const char *comment, size_t *length);

#endif
