// Package apis accepts API versions that Kubernetes has removed, such as extensions/v1beta1 Deployments, and stores their
// objects as the version that is served today.
//
//	request ──▶ Front: the path is rewritten to the served version ──▶ authentication, authorization, audit
//	               ──▶ Convert: the body becomes the served version ──▶ admission, validation, storage
//	answer  ◀───── Convert: the object becomes the old version again ◀──
//
// The table (table.go) is all that is known of a version: the group, the resource, and the version that serves it. The
// conversions are upstream's, whose Go types outlived the versions; customresources.go adds what today's version of
// CustomResourceDefinitions asks for and the old one did not.
//
// After Front a request is one of the served version. So the right that it needs is the right on the served group and
// resource, admission sees the object as it is stored, and a way around RBAC does not exist: a role for the old group
// alone grants nothing. The audit log shows the request of the served version.
//
// A patch is applied to the object in the old version, and goes on as a merge patch of what it changes, under the
// resourceVersion that was read. Server-side apply is refused. Tables and PartialObjectMetadata are not converted: they
// belong to no group. Answers in the old version are JSON.
//
// No goroutines and no locks. A list in the old version is held in memory once as it is converted.
package apis
