package profile

import (
	"errors"
	"fmt"
	"os"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"sigs.k8s.io/yaml"
)

// Read reads the file; "" gives the defaults.
func Read(path string) (Settings, error) {
	if path == "" {
		return Default(), nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return Settings{}, err
	}
	s, err := Parse(data)
	if err != nil {
		return s, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

// Parse reads a KubeSchedulerConfiguration or a Policy.
func Parse(data []byte) (Settings, error) {
	var is metav1.TypeMeta
	if err := yaml.Unmarshal(data, &is); err != nil {
		return Settings{}, err
	}
	switch want := configv1.SchemeGroupVersion.String(); {
	case is.Kind == "KubeSchedulerConfiguration" && is.APIVersion == want:
		var c configv1.KubeSchedulerConfiguration
		if err := yaml.UnmarshalStrict(data, &c); err != nil {
			return Settings{}, err
		}
		return fromConfiguration(&c)
	case is.Kind == "Policy" && (is.APIVersion == "v1" || is.APIVersion == "kubescheduler.config.k8s.io/v1"):
		var p policy
		if err := yaml.UnmarshalStrict(data, &p); err != nil {
			return Settings{}, err
		}
		return p.settings()
	default:
		return Settings{}, fmt.Errorf("kind %q of apiVersion %q: give a KubeSchedulerConfiguration of %s, or a Policy of v1", is.Kind, is.APIVersion, want)
	}
}

// faults collects what is wrong with a file.
type faults []error

func (f *faults) add(format string, args ...any) { *f = append(*f, fmt.Errorf(format, args...)) }

func (f *faults) when(bad bool, format string, args ...any) {
	if bad {
		f.add(format, args...)
	}
}

// percentage checks a share of nodes.
func percentage(p *int32, where string, f *faults) int {
	if p == nil {
		return 0
	}
	f.when(*p < 0 || *p > 100, "%s: give 0 to 100", where)
	return int(*p)
}

func fromConfiguration(c *configv1.KubeSchedulerConfiguration) (Settings, error) {
	var f faults
	withoutMeaning(c, &f)
	s := Settings{Backoff: seconds(c.PodInitialBackoffSeconds, "podInitialBackoffSeconds", &f), MaxBackoff: seconds(c.PodMaxBackoffSeconds, "podMaxBackoffSeconds", &f)}
	f.when(s.Backoff > 0 && s.MaxBackoff > 0 && s.MaxBackoff < s.Backoff, "podMaxBackoffSeconds is less than podInitialBackoffSeconds")
	if c.Parallelism != nil {
		f.when(*c.Parallelism < 1, "parallelism: give more than 0")
		s.Binders = int(*c.Parallelism)
	}
	share := percentage(c.PercentageOfNodesToScore, "percentageOfNodesToScore", &f)
	names := map[string]bool{}
	for i := range c.Profiles {
		where := fmt.Sprintf("profiles[%d]", i)
		p, wait := newProfile(&c.Profiles[i], where, &f)
		if c.Profiles[i].PercentageOfNodesToScore == nil {
			p.Percentage = share
		}
		f.when(names[p.Name], "%s.schedulerName: %s has another profile already", where, p.Name)
		f.when(wait != 0 && s.VolumeWait != 0 && wait != s.VolumeWait, "%s: the bindTimeoutSeconds of all profiles must be the same", where)
		names[p.Name] = true
		if wait != 0 {
			s.VolumeWait = wait
		}
		s.Profiles = append(s.Profiles, p)
	}
	if len(c.Profiles) == 0 {
		p := defaultProfile()
		p.Percentage = share
		s.Profiles = []Profile{p}
	}
	return s, errors.Join(f...)
}

func seconds(n *int64, where string, f *faults) time.Duration {
	if n == nil {
		return 0
	}
	f.when(*n < 1, "%s: give more than 0", where)
	return time.Duration(*n) * time.Second
}

// withoutMeaning refuses the settings of kube-scheduler's process.
func withoutMeaning(c *configv1.KubeSchedulerConfiguration, f *faults) {
	f.when(c.LeaderElection.LeaderElect != nil || c.LeaderElection.ResourceName != "" || c.LeaderElection.ResourceLock != "",
		"leaderElection: the scheduler runs where the cluster's leader is, and elects none itself")
	f.when(c.ClientConnection.Kubeconfig != "" || c.ClientConnection.QPS != 0 || c.ClientConnection.Burst != 0, "clientConnection: the scheduler is in the API server's process")
	f.when(c.EnableProfiling != nil || c.EnableContentionProfiling != nil, "enableProfiling and enableContentionProfiling: use --profile-address")
	f.when(c.DelayCacheUntilActive, "delayCacheUntilActive: the scheduler's cache is always made when it begins to lead")
	f.when(len(c.Extenders) > 0, "extenders: this scheduler asks no other program")
}

// newProfile returns a profile and the bindTimeoutSeconds of its args.
func newProfile(c *configv1.KubeSchedulerProfile, where string, f *faults) (Profile, time.Duration) {
	p := defaultProfile()
	if c.SchedulerName != nil {
		p.Name = *c.SchedulerName
	}
	f.when(p.Name == "", "%s.schedulerName: give a name", where)
	p.Percentage = percentage(c.PercentageOfNodesToScore, where+".percentageOfNodesToScore", f)
	set := newPlugins()
	wait := set.configure(c.PluginConfig, where+".pluginConfig", f)
	p.Preemption = set.preemption
	if c.Plugins != nil {
		set.choose(c.Plugins, where+".plugins", f)
		p.Preemption.Off = set.preemptionOff
	}
	p.Filters, p.Scores = set.filters(), set.scores()
	f.when(len(p.Filters) == 0, "%s: without any filter pods would go to nodes that cannot run them", where)
	return p, wait
}
