// Package cronjob makes Jobs on a schedule.
//
// It watches CronJobs and Jobs. It creates Jobs, deletes those beyond the history limits and those a Replace policy ends,
// and writes the CronJobs' status. It never changes a Job it has made, and touches no pod.
//
// Goroutines: the workers of one work loop. The next start of a CronJob is a delayed entry of its queue.
package cronjob
