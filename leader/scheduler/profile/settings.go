package profile

import (
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/balsahq/balsa/leader/scheduler/rules"
)

// Settings are the settings of a scheduler. The zero value of a number means the scheduler's default.
type Settings struct {
	Profiles            []Profile
	Backoff, MaxBackoff time.Duration
	Binders             int
	// VolumeWait bounds the wait until the volumes of a pod are bound.
	VolumeWait time.Duration
}

// Profile is how the pods of one spec.schedulerName are placed.
type Profile struct {
	Name    string
	Filters []rules.Filter
	Scores  []rules.Score
	// Percentage is the share of nodes, in percent, after which a search among more than 100 nodes ends; 0: the larger the
	// cluster, the smaller the share.
	Percentage int
	Preemption Preemption
}

// Preemption says whether pods with a lower priority make room, and among how many nodes the least harmful eviction is
// sought. Zero means the scheduler's defaults.
type Preemption struct {
	Off               bool
	Percent, Absolute int
}

// Default are the settings without a file.
func Default() Settings { return Settings{Profiles: []Profile{defaultProfile()}} }

func defaultProfile() Profile {
	return Profile{Name: v1.DefaultSchedulerName, Filters: rules.Filters(), Scores: rules.Scores()}
}
