// Package quota keeps the usage that ResourceQuotas show.
//
// It watches ResourceQuotas, Pods, Services and PersistentVolumeClaims, and the metadata of every other kind that some
// quota counts, from the first such quota on; ResourceClaims and DeviceClasses where a quota limits devices. It writes the quotas' status only. What is created is charged by admission
// before it exists; this controller gives back what is deleted and counts what was there before the quota.
//
// Goroutines: the workers of one work loop, and one informer for each kind counted. The table of those has a lock.
package quota
