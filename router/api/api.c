/* SPDX-License-Identifier: Apache-2.0 */

#include "router/api/api.h"

#include <assert.h>
#include <stddef.h>

static const struct api_row {
    const char *name;
    enum api_family family;
    enum api_work work;
} rows[] = {
#define API_ROW(constant, name, family, work) {name, family, work},
    API_ROWS(API_ROW)
#undef API_ROW
};

static const struct api_row *row_of(enum api api)
{
    assert((size_t)api < API_COUNT);

    return &rows[api];
}

const char *api_name(enum api api)
{
    return row_of(api)->name;
}

enum api_family api_family(enum api api)
{
    return row_of(api)->family;
}

enum api_work api_work(enum api api)
{
    return row_of(api)->work;
}
