/*
 * Runs the plugin's checker on requests from standard input, one per line.
 * Prints for each line `ok`, or `refused: ` and the sentence. With the argument `find` it prints what the
 * comment on each line holds, or `none`.
 */
#include "elastic_request.h"

#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
	char line[4096], message[ELASTIC_MESSAGE];

	while (fgets(line, sizeof(line), stdin) != NULL) {
		line[strcspn(line, "\n")] = '\0';
		if (argc > 1 && strcmp(argv[1], "find") == 0) {
			size_t length;
			const char *found = elastic_request_find(line, &length);

			printf("%.*s\n", found ? (int)length : 4, found ? found : "none");
		} else if (elastic_request_check(line, message, sizeof(message)) == 0) {
			puts("ok");
		} else {
			printf("refused: %s\n", message);
		}
	}
	return 0;
}
