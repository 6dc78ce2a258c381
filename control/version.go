package control

import (
	"runtime"
	"runtime/debug"

	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/component-base/compatibility"
)

// Kubernetes is the version of the served API.
const (
	kubernetesMajor   = "1"
	kubernetesMinor   = "36"
	KubernetesVersion = "v1.36.3"
	gitVersion        = KubernetesVersion + "+balsa"
)

// servedVersion is the effective version of the API with the text GET /version answers.
type servedVersion struct{ compatibility.EffectiveVersion }

func effectiveVersion() servedVersion {
	return servedVersion{compatibility.NewEffectiveVersionFromString(kubernetesMajor+"."+kubernetesMinor, "", "")}
}

// Info implements compatibility.EffectiveVersion.
func (servedVersion) Info() *apiversion.Info {
	info := &apiversion.Info{
		Major: kubernetesMajor, Minor: kubernetesMinor,
		EmulationMajor: kubernetesMajor, EmulationMinor: kubernetesMinor,
		MinCompatibilityMajor: kubernetesMajor, MinCompatibilityMinor: "35",
		GitVersion: gitVersion, GitTreeState: "clean",
		GoVersion: runtime.Version(), Compiler: runtime.Compiler, Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, s := range build.Settings {
			switch {
			case s.Key == "vcs.revision":
				info.GitCommit = s.Value
			case s.Key == "vcs.time":
				info.BuildDate = s.Value
			case s.Key == "vcs.modified" && s.Value == "true":
				info.GitTreeState = "dirty"
			}
		}
	}
	return info
}
