/* test_requests.c - request.json: obeyed, or refused in one line; hostile ones do no harm. */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "fixture.h"
#include "policy/request.h"

#define SCHEMA "\"schema\": \"bsguard.request/1\""

static void start(void) {
  fixture_start(BSG_MODE_GUARD);
  use_device(1);
  boundary(1, "Head", "s", 64, BSG_PHASE_FORWARD);
  boundary(0, "Net", "float32[8]", 32, BSG_PHASE_FORWARD);
}

static void ask(const char *text) {
  write_file("request.json", text);
  end_step();
  CHECK(!file_exists("request.json"));
}

/* Refused, saying all of this in the one line and in the event. */
static void check_refused(const char *text, const char *a, const char *b) {
  int lines = fixture.line_count, events = events_of("request"), decisions = events_of("decision");

  ask(text);
  CHECK_INT(fixture.line_count, lines + 1);
  CHECK_INT(events_of("request"), events + 1);
  CHECK_INT(events_of("decision"), decisions);
  CHECK_HAS(last_line(), "request.json is refused: ");
  CHECK_HAS(last_line(), a);
  CHECK_HAS(last_line(), b);
  CHECK_HAS(event_of("request", -1), "\"obeyed\":false,\"why\":\"");
  CHECK(!strchr(last_line(), '\n'));
}

TEST(obeyed_at_the_next_step) {
  start();
  ask("{" SCHEMA ", \"micro_batch\": 4}");
  CHECK_HAS(event_of("request", 0), "\"micro_batch\":4,\"obeyed\":true,\"sequence\":2}");
  CHECK_HAS(event_of("decision", 1), "\"sequence\":2,\"reason\":\"manual\",\"batch\":32,\"micro_batch\":4,"
                                     "\"accumulation_steps\":8,\"why\":\"request.json asks for micro_batch 4\"}");
  CHECK_HAS(read_file("control.json"), "\"reason\": \"manual\"");
  CHECK_HAS(read_file("control.json"), "\"trigger\": null");
  struct bsg_decision decision = boundary(0, "Net", "float32[8]", 32, BSG_PHASE_FORWARD);
  CHECK_INT(decision.chunks, 8);
  CHECK_INT(decision.sequence, 2);
  CHECK_INT(boundary(1, "Head", "s", 64, BSG_PHASE_FORWARD).chunks, 16);
  applied(&decision);
  CHECK_HAS(last_line(), "asked by request.json: Net now runs 32 as 8 x 4 [exact]");
  end_step();
  CHECK_INT(events_of("request"), 1);
}

TEST(filters_are_obeyed) {
  start();
  ask("{" SCHEMA ", \"micro_batch\": 8, \"device\": 1, \"boundary\": null}");
  CHECK_INT(boundary(0, "Net", "float32[8]", 32, BSG_PHASE_FORWARD).chunks, 1);
  CHECK_INT(boundary(1, "Head", "s", 64, BSG_PHASE_FORWARD).chunks, 8);
  ask("{" SCHEMA ", \"micro_batch\": 16, \"boundary\": \"Net\", \"device\": 0}");
  CHECK_INT(boundary(0, "Net", "float32[8]", 32, BSG_PHASE_FORWARD).chunks, 2);
  CHECK_INT(boundary(1, "Head", "s", 64, BSG_PHASE_FORWARD).chunks, 8);
  CHECK_INT(events_of("decision"), 3);
}

TEST(upward_as_well) {
  start();
  terminal(32, BSG_PHASE_FORWARD, BSG_EXACT);
  terminal(32, BSG_PHASE_FORWARD, BSG_EXACT);
  ask("{" SCHEMA ", \"micro_batch\": 100, \"boundary\": \"Net\"}");
  CHECK_INT(boundary(0, "Net", "float32[8]", 32, BSG_PHASE_FORWARD).chunks, 1);
  CHECK_HAS(read_file("control.json"),
            "\"micro_batch\": 32,\n  \"accumulation_steps\": 1,\n  \"previous\": {\"sequence\": 3,");
}

TEST(unknown_fields_are_ignored) {
  start();
  ask("{\"note\": [1, {\"micro_batch\": 7}], " SCHEMA ", \"micro_batch\": 4, \"who\": \"me\"}\n");
  CHECK_HAS(event_of("request", 0), "\"obeyed\":true");
}

TEST(wrong_values_are_refused_with_what_is_allowed) {
  start();
  check_refused("{" SCHEMA ", \"micro_batch\": 0}", "micro_batch is 0", "integer of at least 1");
  check_refused("{" SCHEMA ", \"micro_batch\": -4}", "micro_batch is -4", "integer of at least 1");
  check_refused("{" SCHEMA ", \"micro_batch\": 4.0}", "micro_batch is 4.0", "integer");
  check_refused("{" SCHEMA ", \"micro_batch\": \"4\"}", "micro_batch is \"4\"", "integer");
  check_refused("{" SCHEMA ", \"micro_batch\": null}", "micro_batch is null", "integer");
  check_refused("{" SCHEMA ", \"micro_batch\": 9223372036854775808}", "micro_batch is 9223372036854775808", "integer");
  check_refused("{" SCHEMA "}", "micro_batch is missing", "integer");
  check_refused("{\"micro_batch\": 4}", "schema is missing", "bsguard.request/1");
  check_refused("{\"schema\": \"bsguard.request/2\", \"micro_batch\": 4}", "bsguard.request/2", "bsguard.request/1");
  check_refused("{" SCHEMA ", \"micro_batch\": 4, \"device\": \"0\"}", "device is \"0\"", "0 to 63");
  check_refused("{" SCHEMA ", \"micro_batch\": 4, \"device\": 64}", "device is 64", "0 to 63");
  check_refused("{" SCHEMA ", \"micro_batch\": 4, \"device\": -1}", "device is -1", "0 to 63");
  check_refused("{" SCHEMA ", \"micro_batch\": 4, \"boundary\": 3}", "boundary is 3", "name");
  check_refused("{" SCHEMA ", \"micro_batch\": 4, \"boundary\": \"Neck\"}", "\"Neck\"", "Net (device 0)");
  check_refused("{" SCHEMA ", \"micro_batch\": 4, \"device\": 5}", "device 5", "Head (device 1)");
  check_refused("{" SCHEMA ", \"micro_batch\": 4, \"device\": 0, \"boundary\": \"Head\"}", "Head", "Head (device 1)");
  CHECK_HAS(read_file("control.json"), "\"sequence\": 1,");
}

TEST(what_is_not_json_is_refused) {
  start();
  check_refused("micro_batch: 4", "not JSON", "byte 0");
  check_refused("{" SCHEMA ", \"micro_batch\": 4", "not JSON", "byte");
  check_refused("{" SCHEMA ", \"micro_batch\": 4}{}", "not JSON", "something follows");
  check_refused("{" SCHEMA ", \"micro_batch\": 4, \"micro_batch\": 8}", "not JSON", "there already");
  check_refused("[4]", "object is expected", "[4]");
  check_refused("{\"schema\": \"\x1b[31m\xff\", \"micro_batch\": 4}", "not JSON", "byte");
}

TEST(before_any_boundary_there_is_nothing_to_set) {
  fixture_start(BSG_MODE_GUARD);
  ask("{" SCHEMA ", \"micro_batch\": 4}");
  CHECK_HAS(last_line(), "none has run yet");
  CHECK(!file_exists("control.json"));
}

TEST(too_large_is_refused) {
  char *text = malloc(20000);

  start();
  memset(text, ' ', 19999);
  text[19999] = '\0';
  check_refused(text, "too large", "4096 bytes");
  free(text);
}

TEST(an_empty_file_gets_one_more_step) {
  start();
  write_file("request.json", "");
  end_step();
  CHECK_INT(events_of("request"), 0);
  write_file("request.json", "{" SCHEMA ", \"micro_batch\": 4}"); /* its writer was only slow */
  end_step();
  CHECK_HAS(event_of("request", 0), "\"obeyed\":true");
  write_file("request.json", "");
  end_step();
  end_step();
  CHECK_HAS(event_of("request", 1), "\"obeyed\":false");
  CHECK(!file_exists("request.json"));
}

TEST(a_link_is_refused_and_its_target_left) {
  char target[400], path[700];

  start();
  snprintf(target, sizeof(target), "%s/target", fixture.root);
  FILE *file = fopen(target, "w");
  fputs("{" SCHEMA ", \"micro_batch\": 4}", file);
  fclose(file);
  snprintf(path, sizeof(path), "%s/request.json", run_folder());
  CHECK_INT(symlink(target, path), 0);
  end_step();
  CHECK_HAS(last_line(), "symbolic link");
  CHECK(!file_exists("request.json"));
  CHECK_INT(access(target, R_OK), 0);
  CHECK_INT(boundary(0, "Net", "float32[8]", 32, BSG_PHASE_FORWARD).chunks, 1);
}

TEST(a_fifo_does_not_hang_the_step) {
  char path[700];

  start();
  snprintf(path, sizeof(path), "%s/request.json", run_folder());
  CHECK_INT(mkfifo(path, 0600), 0);
  end_step();
  CHECK_HAS(last_line(), "not a plain file");
  CHECK(!file_exists("request.json"));
}

TEST(a_folder_is_refused_once) {
  char path[700];

  start();
  snprintf(path, sizeof(path), "%s/request.json", run_folder());
  CHECK_INT(mkdir(path, 0700), 0);
  for (int i = 0; i < 5; i++)
    end_step();
  CHECK_INT(events_of("request"), 1);
  CHECK_HAS(last_line(), "folder");
  CHECK_INT(rmdir(path), 0);
  end_step();
  ask("{" SCHEMA ", \"micro_batch\": 4}");
  CHECK_HAS(event_of("request", 1), "\"obeyed\":true");
}

TEST(a_file_of_somebody_else_is_refused) {
  char path[700];

  if (geteuid() != 0)
    skip("only root can give a file away");
  start();
  write_file("request.json", "{" SCHEMA ", \"micro_batch\": 4}");
  snprintf(path, sizeof(path), "%s/request.json", run_folder());
  CHECK_INT(chown(path, 12345, 12345), 0);
  end_step();
  CHECK_HAS(last_line(), "belongs to user 12345");
  CHECK(!file_exists("request.json"));
}

TEST(every_truncation_and_every_changed_byte_of_a_request_is_survived) {
  static struct bsg_json_document document;
  const char *good = "{" SCHEMA ", \"micro_batch\": 4, \"device\": 0, \"boundary\": \"ResNet\"}";
  struct bsg_request request;
  char text[256], why[256];

  CHECK_INT(bsg_request_parse(&document, good, strlen(good), &request, why, sizeof(why)), 0);
  for (size_t length = 0; length < strlen(good); length++) {
    CHECK(bsg_request_parse(&document, good, length, &request, why, sizeof(why)) != 0);
    CHECK(why[0] != '\0');
  }
  for (size_t i = 0; i < strlen(good); i++)
    for (int byte = 0; byte < 256; byte++) {
      strcpy(text, good);
      text[i] = (char)byte;
      if (bsg_request_parse(&document, text, strlen(good), &request, why, sizeof(why)) == 0)
        CHECK(request.micro_batch >= 1);
    }
}
