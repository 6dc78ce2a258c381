// Package audit records requests and their users: it decides which requests are recorded, how much of each, and where the
// records go.
//
//	authenticate ─▶ Rules: level and stages of this request ─▶ event ─┬▶ log: a file that is rotated, or standard output
//	                                                                  └▶ webhook: batches, sent again when refused
//
// Events, policies and both backends are upstream's (audit.k8s.io/v1). Added here: a default policy,
// which never records the content of Secrets; a warning when a configured policy does; and a stop that writes all records before
// the process ends.
//
// Without a log and a webhook there is no Auditor, and requests cost nothing for it. Goroutines: the backends' batches, from Start
// until Stop; and one of lumberjack that removes old files, which cannot be ended.
package audit
