package controller

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/utils/ptr"

	webv1 "example.com/site-operator/api/v1"
)

func podLabels(site *webv1.Site) map[string]string {
	return map[string]string{"app.kubernetes.io/name": "site", "app.kubernetes.io/instance": site.Name}
}

func owner(site *webv1.Site) *metav1ac.OwnerReferenceApplyConfiguration {
	return metav1ac.OwnerReference().WithAPIVersion(webv1.GroupVersion.String()).WithKind("Site").
		WithName(site.Name).WithUID(site.UID).WithController(true).WithBlockOwnerDeletion(true)
}

func (r *SiteReconciler) configMap(site *webv1.Site) *corev1ac.ConfigMapApplyConfiguration {
	return corev1ac.ConfigMap(site.Name, site.Namespace).
		WithLabels(podLabels(site)).WithOwnerReferences(owner(site)).
		WithData(map[string]string{"message": site.Spec.Message})
}

func (r *SiteReconciler) service(site *webv1.Site) *corev1ac.ServiceApplyConfiguration {
	return corev1ac.Service(site.Name, site.Namespace).
		WithLabels(podLabels(site)).WithOwnerReferences(owner(site)).
		WithSpec(corev1ac.ServiceSpec().WithSelector(podLabels(site)).WithPorts(
			corev1ac.ServicePort().WithName("http").WithPort(site.Spec.Port).WithTargetPort(intstr.FromString("http"))))
}

// containers sets what the operator decides of the pods, and leaves alone what
// the API server has defaulted.
func containers(site *webv1.Site, pod *corev1.PodSpec) {
	if len(pod.Containers) == 0 {
		pod.Containers = []corev1.Container{{Name: "web"}}
	}
	c := &pod.Containers[0]
	c.Image = site.Spec.Image
	c.Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: 8080, Protocol: corev1.ProtocolTCP}}
	c.Env = append([]corev1.EnvVar{{Name: "MESSAGE", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
		LocalObjectReference: corev1.LocalObjectReference{Name: site.Name}, Key: "message",
	}}}}, site.Spec.Env...)
	if c.ReadinessProbe == nil {
		c.ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromString("http")}}, PeriodSeconds: 1}
	}
	c.SecurityContext = &corev1.SecurityContext{
		AllowPrivilegeEscalation: ptr.To(false), RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To[int64](65532),
		Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	pod.TerminationGracePeriodSeconds = ptr.To[int64](5)
}

// directory is the ConfigMap in which every Site has a line. It belongs to
// nobody, so that only the finalizer takes lines away.
func (r *SiteReconciler) directory() *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "site-directory", Namespace: r.Namespace}}
}
