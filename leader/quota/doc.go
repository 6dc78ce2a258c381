// Package quota keeps the usage in the status of ResourceQuotas up to date.
//
// It watches ResourceQuotas, Pods, Services and PersistentVolumeClaims, and the metadata of every other kind that some
// quota counts, from the first such quota on; ResourceClaims and DeviceClasses where a quota limits devices. It writes the
// quotas' status only. Admission adds the usage of a new object before the object exists; this controller subtracts the
// usage of deleted objects and counts objects that are older than the quota.
//
// Goroutines: the workers of one work loop, and one informer for each kind counted. The table of those has a lock.
package quota
