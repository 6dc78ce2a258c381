// Command manager runs the operator of Sites.
package main

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	webv1 "example.com/site-operator/api/v1"
	webv1alpha1 "example.com/site-operator/api/v1alpha1"
	"example.com/site-operator/internal/certificates"
	"example.com/site-operator/internal/controller"
	webhookv1 "example.com/site-operator/internal/webhook/v1"
)

// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create

var scheme = runtime.NewScheme()

func init() {
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(apiextensionsv1.AddToScheme(scheme))
	utilruntime.Must(webv1.AddToScheme(scheme))
	utilruntime.Must(webv1alpha1.AddToScheme(scheme))
}

type options struct {
	metrics, probes, image, certDir      string
	elect                                bool
	leaseDuration, renewDeadline, period time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.metrics, "metrics-bind-address", ":8443", "where metrics are served, by HTTPS, to who may read them")
	flag.StringVar(&o.probes, "health-probe-bind-address", ":8081", "where probes are answered")
	flag.StringVar(&o.image, "default-image", "", "the image of Sites that name none")
	flag.StringVar(&o.certDir, "webhook-cert-path", filepath.Join(os.TempDir(), "k8s-webhook-server", "serving-certs"), "where the webhooks' certificate is kept")
	flag.BoolVar(&o.elect, "leader-elect", false, "let one replica of several reconcile")
	flag.DurationVar(&o.leaseDuration, "leader-elect-lease-duration", 15*time.Second, "how long a leader that is silent is believed in")
	flag.DurationVar(&o.renewDeadline, "leader-elect-renew-deadline", 10*time.Second, "how long a leader tries to renew before it gives up")
	flag.DurationVar(&o.period, "leader-elect-retry-period", 2*time.Second, "how often the lease is tried")
	logging := zap.Options{}
	logging.BindFlags(flag.CommandLine)
	flag.Parse()
	ctrl.SetLogger(zap.New(zap.UseFlagOptions(&logging)))
	if err := run(ctrl.SetupSignalHandler(), o); err != nil {
		ctrl.Log.Error(err, "manager ends")
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	namespace := os.Getenv("POD_NAMESPACE")
	config := ctrl.GetConfigOrDie()
	direct, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return err
	}
	if err := certificates.Ensure(ctx, direct, certificates.Config{
		Namespace: namespace, Secret: "site-operator-webhook-server-cert", Service: "site-operator-webhook-service",
		MutatingWebhook: "site-operator-mutating-webhook-configuration", ValidatingWebhook: "site-operator-validating-webhook-configuration",
		Definition: "sites.web.example.com", Dir: o.certDir,
	}); err != nil {
		return err
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                 scheme,
		Metrics:                metricsserver.Options{BindAddress: o.metrics, SecureServing: true, FilterProvider: filters.WithAuthenticationAndAuthorization},
		WebhookServer:          webhook.NewServer(webhook.Options{CertDir: o.certDir}),
		HealthProbeBindAddress: o.probes,
		LeaderElection:         o.elect,
		LeaderElectionID:       "site-operator.web.example.com",
		LeaseDuration:          &o.leaseDuration, RenewDeadline: &o.renewDeadline, RetryPeriod: &o.period,
	})
	if err != nil {
		return err
	}
	reconciler := &controller.SiteReconciler{
		Client: mgr.GetClient(), Scheme: mgr.GetScheme(), Namespace: namespace, Recorder: mgr.GetEventRecorder("site-operator"),
	}
	if err := reconciler.SetupWithManager(mgr); err != nil {
		return err
	}
	if err := webhookv1.SetupSiteWebhookWithManager(mgr, o.image); err != nil {
		return err
	}
	if err := mgr.AddHealthzCheck("healthz", healthz.Ping); err != nil {
		return err
	}
	if err := mgr.AddReadyzCheck("readyz", mgr.GetWebhookServer().StartedChecker()); err != nil {
		return err
	}
	return mgr.Start(ctx)
}
