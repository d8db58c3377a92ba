/* report_json.h - members of report.json, for report_json.c alone, which says in which order they come. */
#ifndef BSG_POLICY_REPORT_JSON_H
#define BSG_POLICY_REPORT_JSON_H

#include "policy/json_write.h"
#include "policy/report.h"

void bsg_report_json_verdict(const struct bsg_report *report, struct bsg_json *json);
void bsg_report_json_accounting(const struct bsg_report *report, struct bsg_json *json);
void bsg_report_json_state(const struct bsg_report *report, struct bsg_json *json);
void bsg_report_json_fit(const struct bsg_report *report, struct bsg_json *json);
void bsg_report_json_groups(const struct bsg_report *report, struct bsg_json *json);
void bsg_report_json_fragmentation(const struct bsg_report *report, struct bsg_json *json);
void bsg_report_json_timeline(const struct bsg_report *report, struct bsg_json *json);
void bsg_report_json_growth(const struct bsg_report *report, struct bsg_json *json);
void bsg_report_json_modules(const struct bsg_report *report, struct bsg_json *json);
void bsg_report_json_notes(const struct bsg_report *report, struct bsg_json *json);
void bsg_report_json_advice(const struct bsg_report *report, struct bsg_json *json);

#endif
