{{/*
What a release is closed with. Values that are `auto` or empty mean: as in the release that is upgraded, closed in a new
one, so that an upgrade alone neither closes a cluster to its clients nor changes the TLS of members that run. Helm finds
the running release by look-ups; where it only renders (GitOps) a release is always new.
*/}}

{{/*
The environment of the brokers that run, as JSON, by names without HEADRACE_BROKER_; empty if there are none. While their
StatefulSet is deleted to be made again (docs/guides/growing-volumes.md), that of the coordinators: posture, TLS and etcd are
the same there.
*/}}
{{- define "headrace.runningEnvironment" -}}
{{- $found := dict -}}
{{- range $component, $kind := dict "broker" "StatefulSet" "coordinator" "Deployment" -}}
{{- if not $found -}}
{{- $running := lookup "apps/v1" $kind $.Release.Namespace (include "headrace.componentName" (dict "root" $ "component" $component)) -}}
{{- range $container := dig "spec" "template" "spec" "containers" list (default dict $running) -}}
{{- if eq $container.name $component -}}
{{- range $container.env }}{{ $_ := set $found (trimPrefix (printf "HEADRACE_%s_" (upper $component)) .name) (.value | default "") }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{/* open, observe or required. */}}
{{- define "headrace.posture" -}}
{{- $running := fromJson (include "headrace.runningEnvironment" .) -}}
{{- if .Values.identity.posture -}}
{{- .Values.identity.posture -}}
{{- else if $running -}}
{{- get $running "POSTURE" | default "open" -}}
{{- else -}}
required
{{- end -}}
{{- end -}}

{{/* Whether clients and services use TLS, as true or nothing. */}}
{{- define "headrace.tls" -}}
{{- $enabled := toString .Values.tls.enabled -}}
{{- $running := fromJson (include "headrace.runningEnvironment" .) -}}
{{- if eq $enabled "true" -}}
true
{{- else if and (eq $enabled "auto") (or (not $running) (hasKey $running "TLS_CERT_FILE")) -}}
true
{{- end -}}
{{- end -}}

{{/*
Who makes the certificates: a secret of the user's, cert-manager, or the chart, which keeps those that it has made before.
Nothing without TLS.
*/}}
{{- define "headrace.certificates" -}}
{{- if include "headrace.tls" . -}}
{{- $name := printf "%s-tls" (include "headrace.fullname" .) -}}
{{- $made := lookup "v1" "Secret" .Release.Namespace $name -}}
{{- if .Values.tls.secretName -}}
secret
{{- else if .Values.tls.certManager.enabled -}}
cert-manager
{{- else if hasKey (dig "metadata" "labels" dict (default dict $made)) "headrace.dev/made-by-chart" -}}
chart
{{- else if .Capabilities.APIVersions.Has "cert-manager.io/v1" -}}
cert-manager
{{- else -}}
chart
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Names and addresses for which the certificate is valid: {"names": [...], "addresses": [...]}. */}}
{{- define "headrace.certificateNames" -}}
{{- $name := include "headrace.fullname" . -}}
{{- $namespace := .Release.Namespace -}}
{{- $names := list $name (printf "%s.%s" $name $namespace) (printf "%s.%s.svc" $name $namespace) -}}
{{- $names = append $names (printf "%s.%s.svc.%s" $name $namespace .Values.clusterDomain) -}}
{{- range $component := list "broker" "coordinator" -}}
{{- $names = append $names (printf "*.%s" (include "headrace.podDomain" (dict "root" $ "component" $component))) -}}
{{- end -}}
{{- if include "headrace.etcdTls" . -}}
{{- /* Members check each other by what these names resolve to. */ -}}
{{- $etcd := dict "root" $ "component" "etcd" -}}
{{- $names = append $names (include "headrace.podDomain" $etcd) -}}
{{- range $index := until 3 -}}
{{- $names = append $names (printf "%s-%d.%s" (include "headrace.componentName" $etcd) $index (include "headrace.podDomain" $etcd)) -}}
{{- end -}}
{{- end -}}
{{- $names = concat $names .Values.tls.certManager.dnsNames -}}
{{- $told := compact (list .Values.coordinator.advertisedAddress) -}}
{{- range $index := until (ternary (int .Values.broker.replicas) 0 .Values.broker.external.enabled) -}}
{{- $address := include "headrace.externalAddress" (dict "root" $ "index" $index) -}}
{{- if not (contains "{nodeIP}" $address) -}}
{{- $told = append $told $address -}}
{{- end -}}
{{- end -}}
{{- $addresses := .Values.tls.certManager.ipAddresses -}}
{{- range $told -}}
{{- $host := regexReplaceAll "^\\[?(.*?)\\]?:[0-9]+$" . "${1}" -}}
{{- if or (contains ":" $host) (regexMatch "^[0-9.]+$" $host) -}}
{{- $addresses = append $addresses $host -}}
{{- else -}}
{{- $names = append $names $host -}}
{{- end -}}
{{- end -}}
{{- dict "names" (uniq $names) "addresses" (uniq $addresses) | toJson -}}
{{- end -}}

{{/* Whether the bundled etcd uses TLS, as true or nothing. What runs keeps it: members store each other's URLs. */}}
{{- define "headrace.etcdTls" -}}
{{- if .Values.etcd.bundled.enabled -}}
{{- $wanted := toString .Values.etcd.bundled.tls -}}
{{- $running := lookup "apps/v1" "StatefulSet" .Release.Namespace (include "headrace.componentName" (dict "root" . "component" "etcd")) -}}
{{- if eq $wanted "true" -}}
true
{{- else if eq $wanted "auto" -}}
{{- $services := fromJson (include "headrace.runningEnvironment" .) -}}
{{- if $running -}}
{{- if contains "https://" (toJson $running.spec.template) }}true{{ end -}}
{{- else if eq (get $services "ETCD_ENDPOINTS") (include "headrace.etcdEndpoints" .) -}}
{{- if hasKey $services "ETCD_TLS_CA_FILE" }}true{{ end -}}
{{- else if and (include "headrace.tls" .) (ne (include "headrace.certificates" .) "secret") -}}
true
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "headrace.etcdScheme" -}}
{{- ternary "https" "http" (eq (include "headrace.etcdTls" .) "true") -}}
{{- end -}}

{{/* Whether services log in at etcd as a user, as true or nothing. */}}
{{- define "headrace.etcdAuth" -}}
{{- $auth := .Values.etcd.auth -}}
{{- $running := fromJson (include "headrace.runningEnvironment" .) -}}
{{- $wanted := toString $auth.enabled -}}
{{- if eq $wanted "true" -}}
true
{{- else if eq $wanted "auto" -}}
{{- if or $auth.secretName (hasKey $running "ETCD_USER") (and .Values.etcd.bundled.enabled (not $running)) -}}
true
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "headrace.etcdSecret" -}}
{{- .Values.etcd.auth.secretName | default (printf "%s-etcd" (include "headrace.fullname" .)) -}}
{{- end -}}

{{/* A service's settings by which it reaches etcd as a user: (dict "root" $ "prefix" "HEADRACE_BROKER_"). */}}
{{- define "headrace.etcdEnvironment" -}}
{{- $tls := .root.Values.etcd.tls -}}
{{- if include "headrace.etcdAuth" .root }}
- {name: {{ .prefix }}ETCD_USER, value: {{ .root.Values.etcd.auth.user | quote }}}
- {name: {{ .prefix }}ETCD_PASSWORD_FILE, value: /etc/headrace-etcd-auth/password}
{{- end }}
{{- if include "headrace.etcdTls" .root }}
- {name: {{ .prefix }}ETCD_TLS_CA_FILE, value: /etc/headrace-tls/ca.crt}
{{- else if $tls.secretName }}
- {name: {{ .prefix }}ETCD_TLS_CA_FILE, value: /etc/headrace-etcd-tls/ca.crt}
{{- if $tls.clientCertificate }}
- {name: {{ .prefix }}ETCD_TLS_CERT_FILE, value: /etc/headrace-etcd-tls/tls.crt}
- {name: {{ .prefix }}ETCD_TLS_KEY_FILE, value: /etc/headrace-etcd-tls/tls.key}
{{- end }}
{{- end }}
{{- end -}}

{{/* The files of these settings. Only the password of the services' user: not that of etcd's administrator. */}}
{{- define "headrace.etcdMounts" -}}
{{- if include "headrace.etcdAuth" . }}
- {name: etcd-auth, mountPath: /etc/headrace-etcd-auth, readOnly: true}
{{- end }}
{{- if .Values.etcd.tls.secretName }}
- {name: etcd-tls, mountPath: /etc/headrace-etcd-tls, readOnly: true}
{{- end }}
{{- end -}}

{{- define "headrace.etcdVolumes" -}}
{{- if include "headrace.etcdAuth" . }}
- name: etcd-auth
  secret:
    secretName: {{ include "headrace.etcdSecret" . }}
    defaultMode: 0440
    items: [{key: password, path: password}]
{{- end }}
{{- with .Values.etcd.tls.secretName }}
- name: etcd-tls
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end -}}

{{/* Variables with which etcdctl reaches the bundled etcd as its administrator. */}}
{{- define "headrace.etcdctlEnvironment" -}}
{{- if include "headrace.etcdAuth" . }}
- {name: ETCDCTL_USER, value: root}
- name: ETCDCTL_PASSWORD
  valueFrom:
    secretKeyRef: {name: {{ include "headrace.etcdSecret" . }}, key: root-password}
{{- end }}
{{- if include "headrace.etcdTls" . }}
- {name: ETCDCTL_CACERT, value: /etc/headrace-tls/ca.crt}
{{- end }}
{{- end -}}
