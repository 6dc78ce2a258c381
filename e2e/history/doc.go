// Package history checks the answers of a store: a History has every operation of every client with its times, and
// every event of every watcher. Check reports whether one correct store could have behaved so.
//
// Two independent checkers examine it:
//
//   - Replay takes the events, which claim to be every write in order, and
//     rebuilds the store revision by revision. Each answer must be what the store
//     was at the revision that the answer names; revisions must respect real
//     time; each acknowledged write must be there, once; each watcher must have
//     seen the same. This takes linear time and looks at everything.
//   - Linearizable ignores the watchers and searches, with porcupine, an order of
//     the operations that explains every answer: key by key where operations
//     touch one key, and over a small set of keys as a whole where they list it
//     or change several. An operation whose outcome is unknown may have happened
//     at any time after it began, or never.
//
// Both are functions of values. Times are nanoseconds of a monotonic clock.
package history
