/* See elastic_request.h. The order of the checks is the Python parser's, so that both name the same mistake first. */
#include "elastic_request.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LARGEST INT64_C(1000000000)
#define MOST_GPUS INT64_C(100000)
#define MOST_GUARD INT64_C(100)
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* A part of the request's text; not terminated. */
struct span {
	const char *at;
	size_t length;
};

struct report {
	char *message;
	size_t size;
};

enum key { GPUS, BATCH, STEP, GROUP, SLICE, LR, COMBINE, WEIGHT, VIA, UNTIL, GUARD, SPEEDUP, DEADLINE, BUDGET, KEYS };

static const char *const key_names[KEYS] = {"gpus",   "batch", "step",	 "group", "slice",   "lr",	 "combine",
					    "weight", "via",   "until", "guard", "speedup", "deadline", "budget"};
static const enum key with_batch[] = {SLICE, LR, COMBINE, UNTIL, GUARD};
static const char *const lr_rules[] = {"auto", "none", "linear", "sqrt", "sde", "adascale"};
static const char *const combines[] = {"mean", "adasum"};
static const char *const ends[] = {"epochs", "quality"};
static const char *const mechanisms[] = {"companion", "component", "shrink", "requeue", "expand"};

/* Returns -1, so that a check can `return refuse(...)`. */
__attribute__((format(printf, 2, 3))) static int refuse(struct report report, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(report.message, report.size, format, arguments);
	va_end(arguments);
	return -1;
}

static bool equals(struct span span, const char *word)
{
	return strlen(word) == span.length && memcmp(span.at, word, span.length) == 0;
}

/* Cuts the text before the first `mark` off `rest`; *found says whether there was one. */
static struct span cut(struct span *rest, char mark, bool *found)
{
	const char *stop = rest->length ? memchr(rest->at, mark, rest->length) : NULL;
	struct span head = *rest;

	*found = stop != NULL;
	if (stop == NULL) {
		rest->at += rest->length;
		rest->length = 0;
		return head;
	}
	head.length = (size_t)(stop - rest->at);
	rest->at = stop + 1;
	rest->length -= head.length + 1;
	return head;
}

static size_t digits(struct span span)
{
	size_t n = 0;

	while (n < span.length && span.at[n] >= '0' && span.at[n] <= '9')
		n++;
	return n;
}

static int whole(const char *key, struct span value, int64_t most, int64_t *number, struct report report)
{
	size_t n = digits(value);

	*number = 0;
	for (size_t i = 0; i < n && n <= 10; i++)
		*number = *number * 10 + (value.at[i] - '0');
	if (n == 0 || n > 10 || n != value.length || *number < 1 || *number > most)
		return refuse(report, "%s=%.*s is not accepted; accepted: a whole number from 1 to %lld", key, (int)value.length,
			      value.at, (long long)most);
	return 0;
}

static int bounds(const char *key, struct span value, int64_t most, int64_t *low, int64_t *high, struct report report)
{
	bool dash;
	struct span rest = value;
	char mark = value.length && memchr(value.at, ':', value.length) ? ':' : '-';
	struct span first = cut(&rest, mark, &dash);

	if (whole(key, first, most, low, report) || whole(key, dash ? rest : first, most, high, report))
		return -1;
	if (*low > *high)
		return refuse(report, "%s=%.*s has its minimum above its maximum; accepted: %s=MIN-MAX, MIN <= MAX", key,
			      (int)value.length, value.at, key);
	return 0;
}

static void join(char *list, const char *const *words, size_t count)
{
	list[0] = '\0';
	for (size_t i = 0; i < count; i++) {
		if (i)
			strcat(list, ", ");
		strcat(list, words[i]);
	}
}

static int one_of(const char *key, struct span value, const char *const *accepted, size_t count, struct report report)
{
	char list[128];

	for (size_t i = 0; i < count; i++)
		if (equals(value, accepted[i]))
			return 0;
	join(list, accepted, count);
	return refuse(report, "%s=%.*s is not known; accepted: %s", key, (int)value.length, value.at, list);
}

/* 1 to 6 digits, and after a point 1 to 6 more; in millionths, so that no locale has a say. -1: it is none. */
static int64_t millionths(struct span value)
{
	bool point;
	struct span fraction = value;
	struct span integer = cut(&fraction, '.', &point);
	int64_t number = 0;

	if (integer.length < 1 || integer.length > 6 || digits(integer) != integer.length)
		return -1;
	if (point && (fraction.length < 1 || fraction.length > 6 || digits(fraction) != fraction.length))
		return -1;
	for (size_t i = 0; i < integer.length; i++)
		number = number * 10 + (integer.at[i] - '0');
	for (size_t i = 0; i < 6; i++)
		number = number * 10 + (point && i < fraction.length ? fraction.at[i] - '0' : 0);
	return number;
}

static int positive(const char *key, struct span value, int64_t most, struct report report)
{
	int64_t number = millionths(value);

	if (number <= 0 || number > most * INT64_C(1000000))
		return refuse(report, "%s=%.*s is not accepted; accepted: a number above 0, at most %lld", key,
			      (int)value.length, value.at, (long long)most);
	return 0;
}

static int speedup(struct span value, struct report report)
{
	int64_t number = millionths(value);

	if (!equals(value, "linear") && (number <= 500000 || number > 1000000))
		return refuse(report,
			      "speedup=%.*s is not accepted; accepted: linear, or a number above 0.5, at most 1",
			      (int)value.length, value.at);
	return 0;
}

/* Exactly so many digits; -1: it is something else, or not between these. */
static int among(struct span value, size_t length, int least, int most)
{
	int number = 0;

	if (value.length != length || digits(value) != length)
		return -1;
	for (size_t i = 0; i < length; i++)
		number = number * 10 + (value.at[i] - '0');
	return number < least || number > most ? -1 : number;
}

static bool is_clock(struct span value)
{
	bool more;
	struct span hour = cut(&value, ':', &more);

	if (!more || hour.length > 2 || among(hour, hour.length ? hour.length : 1, 0, 23) < 0)
		return false;
	return among(cut(&value, ':', &more), 2, 0, 59) >= 0 && (!more || among(value, 2, 0, 59) >= 0);
}

static bool is_date(struct span value)
{
	static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
	bool first, second;
	int year = among(cut(&value, '-', &first), 4, 2000, 2999);
	int month = among(cut(&value, '-', &second), 2, 1, 12);
	bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;

	return first && second && year > 0 && month > 0 && among(value, 2, 1, days[month - 1] + (month == 2 && leap)) > 0;
}

static bool is_ahead(struct span value)
{
	static const char *const units[] = {"", "second", "minute", "hour", "day", "week"};
	size_t n;

	if (value.length < 4 || memcmp(value.at, "now+", 4) != 0)
		return false;
	value.at += 4;
	value.length -= 4;
	n = digits(value);
	value.at += n;
	value.length -= n;
	for (size_t i = 0; i < COUNT(units) && n >= 1 && n <= 9; i++) {
		struct span one = value;

		one.length -= i && one.length && one.at[one.length - 1] == 's';
		if (equals(one, units[i]))
			return true;
	}
	return false;
}

static int deadline(struct span value, struct report report)
{
	bool clock;
	struct span rest = value, date = cut(&rest, 'T', &clock);

	if (is_clock(value) || is_ahead(value) || (is_date(date) && (!clock || is_clock(rest))))
		return 0;
	return refuse(report,
		      "deadline=%.*s is not accepted; accepted: HH:MM[:SS], YYYY-MM-DD[THH:MM[:SS]], now+COUNT[UNIT] such "
		      "as now+8hours",
		      (int)value.length, value.at);
}

static int via(struct span value, struct report report)
{
	bool more = true;

	while (more) {
		struct span word = cut(&value, '+', &more);

		if (one_of("via", word, mechanisms, COUNT(mechanisms), report))
			return -1;
	}
	return 0;
}

/* Edit distance between a key as typed and a known one; both short. */
static size_t distance(struct span typed, const char *known)
{
	size_t row[16], length = strlen(known);

	for (size_t j = 0; j <= length; j++)
		row[j] = j;
	for (size_t i = 1; i <= typed.length; i++) {
		size_t diagonal = row[0];

		row[0] = i;
		for (size_t j = 1; j <= length; j++) {
			size_t best = diagonal + (typed.at[i - 1] != known[j - 1]);

			diagonal = row[j];
			if (row[j] + 1 < best)
				best = row[j] + 1;
			if (row[j - 1] + 1 < best)
				best = row[j - 1] + 1;
			row[j] = best;
		}
	}
	return row[length];
}

static int unknown_key(struct span key, struct report report)
{
	char list[128], hint[64] = "";
	size_t nearest = 3;

	join(list, key_names, KEYS);
	for (size_t i = 0; i < KEYS && key.length <= 12; i++) {
		size_t far = distance(key, key_names[i]);

		if (far < nearest && far * 2 < strlen(key_names[i]) + 1) {
			nearest = far;
			snprintf(hint, sizeof(hint), " (did you mean %s?)", key_names[i]);
		}
	}
	return refuse(report, "unknown key '%.*s' in the elastic request%s; accepted keys: %s", (int)key.length, key.at,
		      hint, list);
}

static int split(struct span body, struct span *values, struct report report)
{
	bool more = true;

	while (more) {
		bool sign;
		struct span word = cut(&body, ',', &more);
		struct span value = word;
		struct span key = cut(&value, '=', &sign);
		size_t i = 0;

		if (!sign || value.length == 0) {
			char list[128];

			join(list, key_names, KEYS);
			return refuse(report, "'%.*s' in the elastic request is not KEY=VALUE; accepted keys: %s",
				      (int)word.length, word.at, list);
		}
		while (i < KEYS && !equals(key, key_names[i]))
			i++;
		if (i == KEYS)
			return unknown_key(key, report);
		if (values[i].at != NULL)
			return refuse(report, "%s= stands twice in the elastic request; give it once", key_names[i]);
		values[i] = value;
	}
	return 0;
}

struct sizes {
	int64_t min_gpus, max_gpus, min_batch, max_batch, step, group, slice;
};

static void range(char *text, size_t size, int64_t low, int64_t high)
{
	if (low == high)
		snprintf(text, size, "%lld", (long long)low);
	else
		snprintf(text, size, "%lld-%lld", (long long)low, (long long)high);
}

static int64_t common_divisor(int64_t a, int64_t b)
{
	while (b) {
		int64_t rest = a % b;

		a = b;
		b = rest;
	}
	return a;
}

/* Is there a size, and one at which some batch gives every replica the same number of samples, a multiple of slice? */
static int feasible(const struct sizes *s, struct report report)
{
	char gpus[48], batch[48];
	int64_t stride = s->step / common_divisor(s->step, s->group) * s->group;
	int64_t first = s->min_gpus;

	range(gpus, sizeof(gpus), s->min_gpus, s->max_gpus);
	range(batch, sizeof(batch), s->min_batch, s->max_batch);
	while (first <= s->max_gpus && first % s->group != 0)
		first += s->step;
	if (first > s->max_gpus)
		return refuse(report, "gpus=%s holds no multiple of group=%lld at step=%lld; accepted: a range with at least one",
			      gpus, (long long)s->group, (long long)s->step);
	if (s->max_batch == 0)
		return 0;
	/* Beyond max_batch replicas there is less than one sample for each. */
	for (int64_t k = first; k <= s->max_gpus && k / s->group <= s->max_batch; k += stride) {
		int64_t unit = k / s->group * s->slice;

		if (s->max_batch / unit * unit >= s->min_batch)
			return 0;
	}
	return refuse(report,
		      "batch=%s cannot be shared out evenly at any size in gpus=%s; accepted: a range holding a multiple of %lld",
		      batch, gpus, (long long)(first / s->group * s->slice));
}

static int check_values(const struct span *values, struct report report)
{
	struct sizes s = {.step = 1, .group = 1, .slice = 1};
	int64_t guard;

	if (bounds("gpus", values[GPUS], MOST_GPUS, &s.min_gpus, &s.max_gpus, report))
		return -1;
	if (values[BATCH].at && bounds("batch", values[BATCH], LARGEST, &s.min_batch, &s.max_batch, report))
		return -1;
	if (values[GROUP].at && whole("group", values[GROUP], MOST_GPUS, &s.group, report))
		return -1;
	s.step = s.group;
	if (values[STEP].at && whole("step", values[STEP], MOST_GPUS, &s.step, report))
		return -1;
	if (values[SLICE].at && whole("slice", values[SLICE], LARGEST, &s.slice, report))
		return -1;
	if (values[LR].at && one_of("lr", values[LR], lr_rules, COUNT(lr_rules), report))
		return -1;
	if (values[COMBINE].at && one_of("combine", values[COMBINE], combines, COUNT(combines), report))
		return -1;
	if (values[WEIGHT].at && positive("weight", values[WEIGHT], 1000, report))
		return -1;
	if (values[VIA].at && via(values[VIA], report))
		return -1;
	if (values[UNTIL].at && one_of("until", values[UNTIL], ends, COUNT(ends), report))
		return -1;
	if (values[GUARD].at && whole("guard", values[GUARD], MOST_GUARD, &guard, report))
		return -1;
	if (values[SPEEDUP].at && speedup(values[SPEEDUP], report))
		return -1;
	if (values[DEADLINE].at && deadline(values[DEADLINE], report))
		return -1;
	if (values[BUDGET].at && positive("budget", values[BUDGET], 999999, report))
		return -1;
	if (values[COMBINE].at && equals(values[COMBINE], "adasum") && values[LR].at && !equals(values[LR], "auto") &&
	    !equals(values[LR], "none"))
		return refuse(report, "lr=%.*s does not go with combine=adasum; accepted: lr=none", (int)values[LR].length,
			      values[LR].at);
	return feasible(&s, report);
}

/* Not strncasecmp: what is a letter must not hang on the caller's locale. */
bool elastic_request_prefixed(const char *text)
{
	for (const char *p = ELASTIC_PREFIX; *p; p++, text++)
		if (*text != *p && !(*text >= 'A' && *text <= 'Z' && *text - 'A' + 'a' == *p))
			return false;
	return true;
}

int elastic_request_check(const char *text, char *message, size_t size)
{
	struct report report = {message, size};
	struct span body = {text, strlen(text)}, values[KEYS] = {{NULL, 0}};

	if (body.length > ELASTIC_LONGEST)
		return refuse(report, "the elastic request has %zu characters; accepted: at most %d", body.length,
			      ELASTIC_LONGEST);
	if (elastic_request_prefixed(body.at)) {
		body.at += ELASTIC_PREFIX_LENGTH;
		body.length -= ELASTIC_PREFIX_LENGTH;
	}
	if (split(body, values, report))
		return -1;
	if (values[GPUS].at == NULL)
		return refuse(report, "elastic request '%s' has no gpus=; accepted: gpus=MIN-MAX,batch=MIN-MAX", text);
	if (values[BATCH].at && values[SPEEDUP].at)
		return refuse(report, "speedup= does not go with batch=; accepted: one of them");
	for (size_t i = 0; values[BATCH].at == NULL && i < COUNT(with_batch); i++)
		if (values[with_batch[i]].at)
			return refuse(report, "%s= goes with batch= alone; accepted: both or neither",
				      key_names[with_batch[i]]);
	return check_values(values, report);
}

/* The same as in protocol/request.py and elastic.lua. */
#define SEPARATORS "; \t\n\r\f\v"

static bool separates(char c)
{
	return c != '\0' && strchr(SEPARATORS, c) != NULL;
}

const char *elastic_request_find(const char *comment, size_t *length)
{
	for (const char *found = comment; *found; found++) {
		if ((found == comment || separates(found[-1])) && elastic_request_prefixed(found)) {
			*length = strcspn(found, SEPARATORS);
			return found;
		}
	}
	return NULL;
}
