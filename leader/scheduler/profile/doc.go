// Package profile reads how pods are placed: the rules of each profile, their weights and their settings.
//
//	file ──▶ Parse ──▶ Settings: the Profiles by schedulerName, back-off, how many nodes are enough
//
// The file is a KubeSchedulerConfiguration (kubescheduler.config.k8s.io/v1), or a Policy (v1), which kube-scheduler read
// until v1.22 and which becomes one profile. The file's types are upstream's; a field that has no meaning for this
// scheduler is refused with an error that names it. Parse reports every fault at once.
//
// A plug-in is the rule of that name: its filter and its score. A rule is prepared and applied as one, so preFilter,
// preScore and reserve cannot be set apart from filter, score and multiPoint.
//
// Parse is a function of values; Read reads the file.
package profile
