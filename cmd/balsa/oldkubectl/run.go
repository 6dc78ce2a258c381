package oldkubectl

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/cli-runtime/pkg/resource"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/generate"
	"k8s.io/kubectl/pkg/generate/versioned"
	"k8s.io/kubectl/pkg/scheme"
	"k8s.io/kubectl/pkg/util"
)

// creates are the flags with which `kubectl run` creates something else than today's kubectl would.
var creates = []string{"generator", "replicas", "schedule"}

// acceptRun adds the old flags to `kubectl run`. Upstream's generator of pods still reads requests, limits,
// serviceaccount and hostport; only their flags are gone.
func acceptRun(run *cobra.Command, f cmdutil.Factory, streams genericiooptions.IOStreams) {
	flags := run.Flags()
	flags.String("generator", "", "generator of the object")
	flags.Int("replicas", 1, "replicas of the Deployment or ReplicationController")
	flags.String("schedule", "", "schedule of the CronJob")
	flags.String("requests", "", "resource requests of the container, as cpu=100m,memory=256Mi")
	flags.String("limits", "", "resource limits of the container, as cpu=200m,memory=512Mi")
	flags.String("serviceaccount", "", "service account of the pod")
	flags.String("hostport", "", "port of the node for the container's port")
	flags.String("restart-policy", "", "restart policy")
	for name, instead := range map[string]string{
		"generator":      "use `kubectl create deployment`, `create job` or `create cronjob`",
		"replicas":       "use `kubectl create deployment NAME --image=IMAGE --replicas=N`",
		"schedule":       "use `kubectl create cronjob NAME --image=IMAGE --schedule=S`",
		"requests":       "use --overrides or a manifest",
		"limits":         "use --overrides or a manifest",
		"serviceaccount": "use --overrides or a manifest",
		"hostport":       "use --overrides or a manifest",
		"restart-policy": "use --restart",
	} {
		_ = flags.MarkDeprecated(name, instead) // fails for unknown flags only
	}
	today := run.Run
	run.Run = func(cmd *cobra.Command, args []string) {
		if given := cmdutil.GetFlagString(cmd, "restart-policy"); given != "" {
			cmdutil.CheckErr(cmd.Flags().Set("restart", given))
		}
		if !anyChanged(cmd, creates) {
			today(cmd, args)
			return
		}
		cmdutil.CheckErr(create(cmd, args, creator{factory: f, streams: streams}))
	}
}

func anyChanged(cmd *cobra.Command, names []string) bool {
	for _, name := range names {
		if cmd.Flags().Changed(name) {
			return true
		}
	}
	return false
}

var errAttach = errors.New("-i, -t, --attach and --rm are for pods: create the object, then use kubectl attach")

// create makes the objects that the flags of a `kubectl run` describe, and creates or prints them.
func create(cmd *cobra.Command, args []string, c creator) error {
	if len(args) == 0 || cmd.ArgsLenAtDash() == 0 {
		return cmdutil.UsageErrorf(cmd, "NAME is required for run")
	}
	if anyChanged(cmd, []string{"stdin", "tty", "attach", "rm"}) {
		return errAttach
	}
	p, err := podOf(cmd, args)
	if err != nil {
		return err
	}
	restart := corev1.RestartPolicy("")
	if cmd.Flags().Changed("restart") {
		restart = p.Spec.RestartPolicy
	}
	r := Request{Generator: cmdutil.GetFlagString(cmd, "generator"), Schedule: cmdutil.GetFlagString(cmd, "schedule"), Replicas: cmdutil.GetFlagInt(cmd, "replicas")}
	workload, err := Workload(r, p, restart)
	if err != nil {
		return err
	}
	overrides := &cmdutil.OverrideOptions{Overrides: cmdutil.GetFlagString(cmd, "overrides"), OverrideType: cmdutil.OverrideType(cmdutil.GetFlagString(cmd, "override-type"))}
	if workload, err = overrides.NewOverrider(workload).Apply(workload); err != nil {
		return err
	}
	objects := []runtime.Object{workload}
	if cmdutil.GetFlagBool(cmd, "expose") {
		service, err := serviceOf(cmd, args[0])
		if err != nil {
			return err
		}
		objects = []runtime.Object{service, workload}
	}
	return c.create(cmd, objects)
}

// podOf is the pod that today's `kubectl run` would create.
func podOf(cmd *cobra.Command, args []string) (*corev1.Pod, error) {
	generator := versioned.BasicPod{}
	params := generate.MakeParams(cmd, generator.ParamNames())
	params["name"], params["annotations"], params["env"] = args[0], cmdutil.GetFlagStringArray(cmd, "annotations"), cmdutil.GetFlagStringArray(cmd, "env")
	if len(args) > 1 {
		params["args"] = args[1:]
	}
	if err := generate.ValidateParams(generator.ParamNames(), params); err != nil {
		return nil, err
	}
	object, err := generator.Generate(params)
	if err != nil {
		return nil, err
	}
	p, ok := object.(*corev1.Pod)
	if !ok {
		return nil, fmt.Errorf("kubectl's generator of pods made a %T", object)
	}
	return p, nil
}

// serviceOf is the Service of --expose.
func serviceOf(cmd *cobra.Command, name string) (runtime.Object, error) {
	port := cmdutil.GetFlagString(cmd, "port")
	if port == "" {
		return nil, cmdutil.UsageErrorf(cmd, "--port must be set when exposing a service")
	}
	labels := cmdutil.GetFlagString(cmd, "labels")
	selector := labels
	if selector == "" {
		selector = "run=" + name
	}
	return versioned.ServiceGeneratorV2{}.Generate(map[string]any{"name": name, "default-name": name, "port": port, "labels": labels, "selector": selector})
}

// creator sends objects to the cluster.
type creator struct {
	factory cmdutil.Factory
	streams genericiooptions.IOStreams
}

// create creates the objects in their order, or with --dry-run=client only prints them.
func (c creator) create(cmd *cobra.Command, objects []runtime.Object) error {
	dry, err := cmdutil.GetDryRunStrategy(cmd)
	if err != nil {
		return err
	}
	printer, err := printerOf(cmd, dry)
	if err != nil {
		return err
	}
	namespace, explicit, err := c.factory.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return err
	}
	for _, o := range objects {
		if o, err = c.send(o, request{cmd: cmd, namespace: namespace, explicit: explicit, dry: dry}); err != nil {
			return err
		}
		if err := printer(o, c.streams); err != nil {
			return err
		}
	}
	return nil
}

// request says how an object is sent.
type request struct {
	cmd       *cobra.Command
	namespace string
	explicit  bool // the namespace was given as a flag
	dry       cmdutil.DryRunStrategy
}

func (c creator) send(o runtime.Object, r request) (runtime.Object, error) {
	kinds, _, err := scheme.Scheme.ObjectKinds(o)
	if err != nil {
		return nil, err
	}
	if r.dry == cmdutil.DryRunClient {
		if r.explicit {
			return o, meta.NewAccessor().SetNamespace(o, r.namespace)
		}
		return o, nil
	}
	mapper, err := c.factory.ToRESTMapper()
	if err != nil {
		return nil, err
	}
	mapping, err := mapper.RESTMapping(kinds[0].GroupKind(), kinds[0].Version)
	if err != nil {
		return nil, err
	}
	if err := util.CreateOrUpdateAnnotation(cmdutil.GetFlagBool(r.cmd, cmdutil.ApplyAnnotationsFlag), o, scheme.DefaultJSONEncoder()); err != nil {
		return nil, err
	}
	client, err := c.factory.ClientForMapping(mapping)
	if err != nil {
		return nil, err
	}
	return resource.NewHelper(client, mapping).DryRun(r.dry == cmdutil.DryRunServer).WithFieldManager(cmdutil.GetFlagString(r.cmd, "field-manager")).Create(r.namespace, false, o)
}

// printerOf returns a function that prints objects as the command's flags for output say.
func printerOf(cmd *cobra.Command, dry cmdutil.DryRunStrategy) (func(runtime.Object, genericiooptions.IOStreams) error, error) {
	flags := genericclioptions.NewPrintFlags("created").WithTypeSetter(scheme.Scheme)
	copied := &cobra.Command{}
	flags.AddFlags(copied)
	var errs []error
	copied.Flags().VisitAll(func(f *pflag.Flag) {
		if given := cmd.Flags().Lookup(f.Name); given != nil && given.Changed {
			errs = append(errs, f.Value.Set(given.Value.String()))
		}
	})
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	cmdutil.PrintFlagsWithDryRunStrategy(flags, dry)
	printer, err := flags.ToPrinter()
	if err != nil {
		return nil, err
	}
	return func(o runtime.Object, streams genericiooptions.IOStreams) error {
		return printer.PrintObj(o, streams.Out)
	}, nil
}
