package oldkubectl_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	kubectl "k8s.io/kubectl/pkg/cmd"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	"github.com/balsahq/balsa/cmd/balsa/oldkubectl"
)

// kubectlOut runs a command line of the built-in kubectl that needs no cluster, and returns what it prints.
func kubectlOut(t *testing.T, line string) (out, failure string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	streams := genericiooptions.IOStreams{In: strings.NewReader(""), Out: &stdout, ErrOut: &stderr}
	flags := genericclioptions.NewConfigFlags(false)
	cmd := kubectl.NewKubectlCommand(kubectl.KubectlOptions{ConfigFlags: flags, IOStreams: streams})
	oldkubectl.Accept(cmd, cmdutil.NewFactory(flags), streams)
	cmdutil.BehaviorOnFatal(func(text string, _ int) {
		failure = text
		panic(stopped{})
	})
	defer cmdutil.DefaultBehaviorOnFatal()
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(stopped); !ok {
				panic(r)
			}
		}
		out = stdout.String() + stderr.String()
	}()
	cmd.SetOut(&stdout)
	cmd.SetErr(&stderr)
	cmd.SetArgs(strings.Fields(line))
	if err := cmd.Execute(); err != nil {
		failure = err.Error()
	}
	return "", failure
}

type stopped struct{}

func TestRunCreatesWhatTheOldFlagsAskFor(t *testing.T) {
	for _, c := range []struct {
		line string
		want []string
	}{
		{"run nginx --image=nginx --replicas=3", []string{"kind: Deployment", "apiVersion: apps/v1", "replicas: 3", "run: nginx", "image: nginx", "--replicas has been deprecated"}},
		{"run nginx --image=nginx --generator=deployment/apps.v1beta1", []string{"kind: Deployment", "apiVersion: apps/v1", "replicas: 1"}},
		{"run nginx --image=nginx --generator=run/v1 --replicas=2", []string{"kind: ReplicationController", "replicas: 2"}},
		{"run nginx --image=nginx --generator=run-pod/v1", []string{"kind: Pod"}},
		{"run pi --image=perl --restart=OnFailure --generator=job/v1 -- perl -e 1", []string{"kind: Job", "apiVersion: batch/v1", "restartPolicy: OnFailure", "- perl"}},
		{"run pi --image=perl --schedule=*/5_*_*_*_*", []string{"kind: CronJob", "apiVersion: batch/v1", "restartPolicy: OnFailure"}},
		{"run web --image=nginx --replicas=2 --port=80 --expose", []string{"kind: Service", "kind: Deployment"}},
		{"run nginx --image=nginx --replicas=2 --requests=cpu=100m --limits=cpu=1 --serviceaccount=robot", []string{"cpu: 100m", "serviceAccountName: robot", "--requests has been deprecated"}},
		{"run nginx --image=nginx --replicas=1 --restart-policy=OnFailure", []string{"kind: Job", "restartPolicy: OnFailure"}},
		{"run nginx --image=nginx --replicas=1 --overrides={\"apiVersion\":\"apps/v1\",\"spec\":{\"paused\":true}}", []string{"kind: Deployment", "paused: true"}},
	} {
		out, failure := kubectlOut(t, c.line+" --dry-run=client -o yaml")
		if strings.Contains(c.line, " -- ") {
			before, after, _ := strings.Cut(c.line, " -- ")
			out, failure = kubectlOut(t, before+" --dry-run=client -o yaml -- "+after)
		}
		for _, want := range c.want {
			if failure != "" || !strings.Contains(out, want) {
				t.Errorf("kubectl %s printed, without %q:\n%s%s", c.line, want, out, failure)
			}
		}
	}
}

func TestRunRefusesWhatItWouldIgnore(t *testing.T) {
	for line, want := range map[string]string{
		"run --image=nginx --replicas=3":                                "NAME is required",
		"run nginx --image=nginx --generator=nothing/v1":                "no such generator",
		"run nginx --image=nginx --replicas=2 --restart=Never":          "has no replicas",
		"run nginx --image=nginx --generator=cronjob/v1beta1":           "needs --schedule",
		"run nginx --image=nginx --generator=job/v1 --restart=Always":   "restart policy",
		"run nginx --image=nginx --replicas=2 -i":                       "kubectl attach",
		"run nginx --image=nginx --generator=run/v1 --schedule=1_1_1_1": "has no schedule",
	} {
		if out, failure := kubectlOut(t, line+" --dry-run=client -o yaml"); !strings.Contains(failure, want) {
			t.Errorf("kubectl %s failed with %q, want %q; it printed %s", line, failure, want, out)
		}
	}
}

func TestWordsReadsTheOldSpelling(t *testing.T) {
	words, warnings := oldkubectl.Words(strings.Fields("apply -f x.yaml -record -- -record"))
	if want := strings.Fields("apply -f x.yaml --record -- -record"); !slices.Equal(words, want) || len(warnings) != 1 {
		t.Errorf("got %q with warnings %q, want %q with one", words, warnings, want)
	}
}
