// Threads, the processors on which they run, and waiting until a word in memory changes.
//
// The system's scheduler balances processors only every few milliseconds, but a stage of a step runs for
// microseconds. Therefore the functions of this header move threads. A move does not change the set of
// processors that a thread may use. The functions that move threads do nothing if the system does not support
// moves, or while another thread of the process moves a thread.
#pragma once

#include <cstdint>

namespace tg::os {

using ThreadId = int;  // the system's thread id; 0: none
ThreadId current_thread();
int current_processor();  // -1: unknown

// The thread's processor time in seconds; negative if unknown, for example because the thread has exited.
double processor_seconds(ThreadId thread);
// Moves a thread to that processor, if it may use it.
void move_thread(ThreadId thread, int processor);
// Moves the calling thread away from this processor, if the thread may use at least `processors` processors.
void leave_processor(int processor, int processors);

// The number of processors that the calling thread may use; at least 1.
int usable_processors();
// Restricts the calling thread, and threads that it starts later, to the first `count` of its allowed
// processors.
void limit_processors(int count);

// Calls f in every later child of fork(), before fork() returns there. In the child, only the thread that
// called fork() exists.
void call_after_fork(void (*f)());

// Sleeps while *word == value, until wake() is called or `timeout_ns` nanoseconds have passed. A negative
// timeout means no limit. May return early. If `shared` is set, threads of other processes that map the same
// memory may change the word and wake this thread.
void wait_while_equal(const std::uint32_t* word, std::uint32_t value, bool shared,
                      std::int64_t timeout_ns = -1);

// Wakes at most `count` threads that wait for the word. The caller changes the word first.
void wake(const std::uint32_t* word, int count, bool shared);

}  // namespace tg::os
