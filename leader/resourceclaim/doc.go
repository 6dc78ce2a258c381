// Package resourceclaim makes the ResourceClaims that pods ask for by a template, and ends claims that no pod uses any more
// (KEP-4381).
//
// It watches Pods, ResourceClaims and ResourceClaimTemplates. It creates claims, writes their status (reservedFor without the pods
// that have ended, no allocation when none is left) and their finalizer, deletes claims whose pod has ended, and writes
// status.resourceClaimStatuses of pods. It never allocates: that is the scheduler's, which also reserves the claims of the pods that
// it binds. Pods that name their node themselves get their reservation here.
//
// Goroutines: the workers of two work loops, one for pods and one for claims.
package resourceclaim
