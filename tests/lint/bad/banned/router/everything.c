/* SPDX-License-Identifier: Apache-2.0 */
/* sprintf(comment) and "strcpy(" in a string are no calls. TODO: who, when? TODO(#7) is fine. */
#include <stdio.h>

typedef struct old old_type;

static const char *text = "strtok(text, sep)";

static void everything(void *ctx, char *out, const char *in)
{
    struct old *old = (struct old *)ctx;
    char line[64];
    snprintf(line, sizeof line, "%s", in);
    sprintf(out, "%s", in);
    strcpy(out, in);
    strcat(out, in);
    strtok(out, ",");
    int number = atoi(in);
    char *memory = alloca(64);
#ifdef __linux__
    number++;
#endif
}

#ifdef NDEBUG
#endif
