// A stand-in for NVIDIA's management library with two cards. What they report is read from the
// file named by NVML_STATE at each call: lines "errors GPU COUNT", "xid GPU NUMBER", "lost GPU".
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct { void *device; unsigned long long type, data; unsigned gpu, compute; } Event;
enum { OK = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, TIMEOUT = 10, LOST = 15, CARDS = 2 };
static int cards[CARDS];
static int seen;  // Xid lines told so far

// The value of the last line of that kind for a card, `none` without one.
static long last(const char *kind, int card, long none) {
  FILE *file = fopen(getenv("NVML_STATE"), "r");
  char word[32], line[128];
  long value = none, number;
  int gpu;
  if (!file) return none;
  while (fgets(line, sizeof line, file)) {
    number = 1;
    if (sscanf(line, "%31s %d %ld", word, &gpu, &number) >= 2 && gpu == card && !strcmp(word, kind))
      value = number;
  }
  fclose(file);
  return value;
}

static int card_of(void *handle) { return (int)((int *)handle - cards); }

int nvmlInit_v2(void) { return OK; }
int nvmlInitWithFlags(unsigned flags) { (void)flags; return OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return code == LOST ? "GPU is lost" : "an error"; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
  if (index >= CARDS) return NOT_FOUND;
  *handle = &cards[index];
  return OK;
}

int nvmlDeviceGetTotalEccErrors(void *handle, int kind, int since, unsigned long long *count) {
  (void)kind; (void)since;
  if (last("lost", card_of(handle), 0)) return LOST;
  long errors = last("errors", card_of(handle), -1);
  if (errors < 0) return NOT_SUPPORTED;
  *count = (unsigned long long)errors;
  return OK;
}

int nvmlEventSetCreate(void **set) { *set = &seen; return OK; }
int nvmlEventSetFree(void *set) { (void)set; return OK; }
int nvmlDeviceRegisterEvents(void *handle, unsigned long long types, void *set) {
  (void)handle; (void)set;
  return types == 8 ? OK : NOT_SUPPORTED;
}

int nvmlEventSetWait_v2(void *set, Event *event, unsigned milliseconds) {
  (void)set; (void)milliseconds;
  FILE *file = fopen(getenv("NVML_STATE"), "r");
  char word[32], line[128];
  long number;
  int gpu, at = 0;
  while (file && fgets(line, sizeof line, file)) {
    if (sscanf(line, "%31s %d %ld", word, &gpu, &number) != 3 || strcmp(word, "xid")) continue;
    if (at++ < seen) continue;
    seen = at;
    memset(event, 0, sizeof *event);
    event->device = &cards[gpu];
    event->type = 8;
    event->data = (unsigned long long)number;
    fclose(file);
    return OK;
  }
  if (file) fclose(file);
  struct timespec nap = {0, 5 * 1000 * 1000};
  nanosleep(&nap, 0);
  return TIMEOUT;
}
