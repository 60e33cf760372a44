/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/metrics.h"

#include <assert.h>
#include <inttypes.h>

static const struct metric_row {
    const char *name, *type, *help;
} metric_rows[] = {
#define X(name, text, type, help) {text, type, help},
    METRICS_TABLE(X)
#undef X
};
static_assert(sizeof metric_rows / sizeof *metric_rows == METRIC_COUNT, "one row per metric");

int metrics_write(const struct metrics *metrics, struct buf *out, struct err *e)
{
    for (unsigned i = 0; i < METRIC_COUNT; i++) {
        const struct metric_row *row = &metric_rows[i];
        if (buf_appendf(out, e, "# HELP iii_engine_%s %s\n# TYPE iii_engine_%s %s\niii_engine_%s %" PRIu64 "\n", row->name,
                        row->help, row->name, row->type, row->name, metrics->values[i]))
            return -1;
    }
    return 0;
}
